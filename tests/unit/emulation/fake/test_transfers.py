import dataclasses
from collections import namedtuple

import pytest
import torch
from torch import nn
from transformers.modeling_outputs import BaseModelOutput

from fakexport.emulation.devices import emulate
from fakexport.emulation.fake import build, fake_mode, install_transfers
from fakexport.emulation.fake.place import place

Pair = namedtuple("Pair", "left right")


@dataclasses.dataclass
class Output:
    state: torch.Tensor
    extra: torch.Tensor | None = None


class Block(nn.Module):
    def __init__(self):
        super().__init__()
        self.fc = nn.Linear(4, 4)

    def forward(self, x, table=None, others=()):
        assert table is None or table.device == self.fc.weight.device
        for other in others:
            assert other.device == self.fc.weight.device
        return self.fc(x) if table is None else self.fc(x) + table


class Tower(nn.Module):
    def __init__(self, count=6):
        super().__init__()
        self.embed = nn.Linear(4, 4)
        self.blocks = nn.ModuleList(Block() for _ in range(count))
        self.head = nn.Linear(4, 2)

    def forward(self, x):
        x = self.embed(x)
        table = x.sum(0)
        for block in self.blocks:
            x = block(x, table=table, others=[table])
        return self.head(x)


def moves(program):
    """Device of each node that moves a tensor between devices."""
    found = []
    for node in program.graph.nodes:
        source = node.args[0].meta["val"] if node.args and isinstance(node.args[0], torch.fx.Node) else None
        target = node.meta.get("val")
        if (
            isinstance(source, torch.Tensor)
            and isinstance(target, torch.Tensor)
            and node.op == "call_function"
        ):
            found += [str(target.device)] if source.device != target.device else []
    return found


def exported(built, **options):
    with install_transfers(built.module, built.placement):
        return torch.export.export(built.module, built.args, strict=False, **options)


def tower_over(device_map, count=6):
    return build(lambda: (Tower(count), (torch.ones(3, 4),)), device_map=device_map)


@pytest.fixture(autouse=True)
def devices():
    with emulate("cpu+3xH100"):
        yield


def test_a_model_over_three_devices_runs_and_nothing_of_a_failed_run_is_kept():
    built = tower_over("balanced")
    handle = install_transfers(built.module, built.placement)

    with built.mode:
        with pytest.raises(RuntimeError):
            built.module(torch.ones(3, 5, device="cuda:0"))
        assert not next(iter(built.module.head._forward_pre_hooks.values()))._moved
        y = built.module(*built.args)
    handle.remove()
    handle.remove()

    assert str(y.device) == "cuda:2"
    assert not any(m._forward_pre_hooks or m._forward_hooks for m in built.module.modules())


def test_each_boundary_is_crossed_once_by_each_tensor():
    built = tower_over({"blocks.2": "cuda:1", "blocks.3": "cuda:1", "": "cuda:0"})

    program = exported(built)

    assert moves(program) == ["cuda:1", "cuda:1", "cuda:0"]  # x and table there, x back.


def test_a_tensor_is_moved_once_per_device_and_not_per_block():
    built = tower_over({"embed": "cpu", "blocks": "cuda:0", "head": "cuda:0"}, count=20)

    program = exported(built)

    assert moves(program) == ["cuda:0", "cuda:0"]


def test_a_strict_trace_moves_too():
    built = tower_over({"embed": "cpu", "blocks": "cuda:0", "head": "cuda:0"}, count=2)

    with install_transfers(built.module, built.placement):
        program = torch.export.export(built.module, built.args, strict=True)

    assert set(moves(program)) == {"cuda:0"}


def test_a_tensor_that_was_changed_is_moved_again():
    class Changes(nn.Module):
        def __init__(self):
            super().__init__()
            self.zero, self.one, self.two = nn.Linear(4, 4), nn.Linear(4, 4), nn.Linear(4, 4)

        def forward(self, x):
            x = self.zero(x) * 2
            y = self.one(x)
            x.add_(1)
            return y, self.two(x)

    built = build(lambda: (Changes(), (torch.ones(3, 4),)), device_map="zero=cuda:0,=cuda:1")

    assert moves(exported(built)) == ["cuda:1", "cuda:1"]


def test_a_model_on_one_device_gets_no_hooks():
    built = tower_over("cuda:0")

    with install_transfers(built.module, built.placement):
        assert not any(module._forward_pre_hooks for module in built.module.modules())


def test_a_model_that_moves_its_tensors_itself_gets_no_more_moves():
    class Hybrid(nn.Module):
        def __init__(self):
            super().__init__()
            self.fc1, self.fc2 = nn.Linear(4, 4), nn.Linear(4, 2)

        def forward(self, x):
            return self.fc2(self.fc1(x).to(self.fc2.weight.device))

    built = build(lambda: (Hybrid(), (torch.ones(3, 4),)), device_map="fc1=cpu,fc2=cuda:0")

    assert moves(exported(built)) == ["cuda:0"]


@pytest.mark.parametrize(
    ("wrap", "unwrap"),
    [
        (lambda t: [t, 3], lambda v: v[0]),
        (lambda t: (None, (t,)), lambda v: v[1][0]),
        (lambda t: {"a": {"b": t}}, lambda v: v["a"]["b"]),
        (lambda t: Pair(1, t), lambda v: v.right),
        (lambda t: Output(t), lambda v: v.state),
        (lambda t: BaseModelOutput(last_hidden_state=t), lambda v: v.last_hidden_state),
    ],
    ids=["list", "tuple", "dict", "namedtuple", "dataclass", "transformers"],
)
def test_tensors_are_found_in_containers(wrap, unwrap):
    class Receives(nn.Module):
        def __init__(self):
            super().__init__()
            self.fc = nn.Linear(4, 4)

        def forward(self, given):
            assert type(given) is type(wrap(None))
            return self.fc(unwrap(given))

    class Root(nn.Module):
        def __init__(self):
            super().__init__()
            self.first, self.second = nn.Linear(4, 4), Receives()

        def forward(self, x):
            return self.second(wrap(self.first(x)))

    with fake_mode():
        model = Root()
        placement = place(model, {"first": "cpu", "second": "cuda:1"})

        with install_transfers(model, placement):
            y = model(torch.ones(4))

    assert str(y.device) == "cuda:1"
