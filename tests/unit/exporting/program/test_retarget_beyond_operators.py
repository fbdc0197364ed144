"""Retargeting what is no plain operator: `vmap`, other higher-order operators, sizes from data, objects."""

from __future__ import annotations

import pytest
import torch
from torch import nn
from torch._higher_order_ops.out_dtype import out_dtype

import fakexport as fe
from fakexport._torch.emulation.fake_tensors import fake_elsewhere
from fakexport.exporting.program import RetargetError, retargeted
from tests.forked import run_python
from tests.same_nodes import nodes_equal
from tests.torchbind import LIBRARY


class Masked(nn.Module):
    """A mask by `vmap` of `vmap`, as transformers makes it, with a tensor that is indexed inside."""

    def forward(self, x: torch.Tensor, is_kept: torch.Tensor) -> torch.Tensor:
        places = torch.arange(x.shape[-1], device=x.device)

        def mask(query: torch.Tensor, key: torch.Tensor) -> torch.Tensor:
            return (query >= key) & is_kept.index_select(0, key[None])[0]

        rows = torch.vmap(torch.vmap(mask, in_dims=(None, 0)), in_dims=(0, None))
        return x.masked_fill(rows(places, places).logical_not(), 0.0)


class Padded(nn.Module):
    """Pads a size that only running tells, for which torch has a kernel in Python alone."""

    def forward(self, lengths: torch.Tensor) -> torch.Tensor:
        places = torch.arange(lengths.max().item(), device=lengths.device)
        return nn.functional.pad(places < lengths[:, None], (0, 0, 1, 0))


class Accumulated(nn.Module):
    """A higher-order operator that is no control flow: it has no subgraph."""

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return out_dtype(torch.ops.aten.mm.default, torch.int32, x, x)


FACTORIES = {
    "vmap": lambda: (Masked(), (torch.zeros(3, 4, 4), torch.ones(4, dtype=torch.bool))),
    "padded": lambda: (Padded(), (torch.zeros(3, dtype=torch.int64),)),
    "higher-order": lambda: (Accumulated(), (torch.zeros(4, 4, dtype=torch.int8),)),
}


@pytest.mark.parametrize("dynamic", [pytest.param(None, marks=pytest.mark.slow), "auto"])
@pytest.mark.parametrize("name", FACTORIES)
def test_up_it_is_the_native_program(name, dynamic):
    cpu = fe.export(FACTORIES[name], dynamic_shapes=dynamic)

    made = retargeted(cpu, {"cpu": "cuda:0"}, topology="H100")

    native = fe.export(FACTORIES[name], target="H100", dynamic_shapes=dynamic)
    assert nodes_equal(made.program, native) == ()
    assert made.unproven == ()


@pytest.mark.parametrize("name", FACTORIES)
def test_down_it_is_the_native_program(name):
    gpu = fe.export(FACTORIES[name], target="H100")

    made = retargeted(gpu, {"cuda:0": "cpu"})

    assert nodes_equal(made.program, fe.export(FACTORIES[name])) == ()
    assert made.unproven == ()


@pytest.mark.parametrize("name", ["vmap", "padded"])
def test_a_loaded_program_is_retargeted_like_the_one_that_was_saved(name, tmp_path):
    program = fe.export(FACTORIES[name])
    fe.save(program, tmp_path / "cpu.pt2")
    fe.save(fe.retarget(program, "cuda:0"), tmp_path / "gpu.pt2")

    moved = fe.retarget(fe.load(tmp_path / "cpu.pt2"), "cuda:0")

    assert nodes_equal(moved, fe.load(tmp_path / "gpu.pt2")) == ()


@pytest.mark.parametrize("name", FACTORIES)
def test_no_value_stays_on_the_old_device(name):
    moved = fe.retarget(fe.export(FACTORIES[name]), "cuda:0")

    values = [node.meta.get("val") for node in moved.graph.nodes]
    assert {str(value.device) for value in values if isinstance(value, torch.Tensor)} == {"cuda:0"}


def test_strict_rules_hold_inside_of_a_vmap():
    """What is indexed is put on the CPU behind its placeholder, and the index stays where it is."""
    program = fe.export(FACTORIES["vmap"], target="H100")
    source = next(node for node in program.graph.nodes if node.name == "is_kept")
    with program.graph.inserting_after(source):
        away = program.graph.call_function(
            torch.ops.aten.to.device, (source, torch.device("cpu"), torch.bool)
        )
    away.meta["val"] = fake_elsewhere(source.meta["val"], torch.device("cpu"))
    source.replace_all_uses_with(away, delete_user_cb=lambda user: user is not away)

    with pytest.raises(RetargetError) as caught:
        fe.retarget(program, {"cuda:0": "cuda:0"}, target="H100")

    (diagnostic,) = caught.value.diagnostics
    assert diagnostic.code == "FE502"
    assert diagnostic.notes == ("aten.gather.default gets self on cpu, index on cuda:0",)
    assert diagnostic.primary.span.path == __file__


OBJECT = """
import sys, torch
from fakexport.exporting.program import retargeted

torch.ops.load_library(sys.argv[1])

@torch._library.register_fake_class("_TorchScriptTesting::_TensorQueue")
class FakeQueue:
    def __init__(self, queue):
        self.queue = queue
    @classmethod
    def __obj_unflatten__(cls, state):
        return cls(**dict(state))
    def push(self, x):
        self.queue.append(x)
    def pop(self):
        return self.queue.pop()

class Queues(torch.nn.Module):
    def __init__(self):
        super().__init__()
        self.queue = torch.classes._TorchScriptTesting._TensorQueue(torch.zeros(1))
    def forward(self, x):
        self.queue.push(x)
        return self.queue.pop() + x

model = Queues()
program = torch.export.export(model, (torch.ones(3),))
made = retargeted(program, "cuda:0")
print(made.devices, model.queue.size())
print(*made.unproven)
"""


@pytest.mark.skipif(not LIBRARY.exists(), reason="this torch comes without its test classes")
def test_what_a_cpp_object_gives_is_moved_and_said_to_be_unproven():
    done = run_python(OBJECT, LIBRARY)

    assert done.returncode == 0, done.stderr
    devices_and_size, unproven = done.stdout.splitlines()
    assert devices_and_size == "('cuda:0',) 0"  # The object itself was not called.
    assert unproven.startswith(
        "higher_order.call_torchbind cannot be run on fake tensors, so the check is incomplete for 1 node"
    )
