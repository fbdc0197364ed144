"""`export` gives a plain program with fake weights, for devices that are not there."""

from __future__ import annotations

import functools
import importlib
import warnings

import pytest
import torch
from torch import nn
from torch.export import Dim, ExportedProgram

import fakexport as fe
from fakexport.emulation.history import constant_value
from fakexport.files.processes import SharedProcess

export_module = importlib.import_module("fakexport.exporting.capture.export")


class Literals(nn.Module):
    """Creates tensors on its input's device in every way that torch has for literals."""

    def forward(self, x):
        a = torch.tensor([1.0, 2.0, 3.0], device=x.device)
        b = torch.as_tensor([4.0, 5.0, 6.0], device=x.device)
        c = x.new_tensor([7.0, 8.0, 9.0])
        scale = torch.tensor(2.0, device=x.device).item()
        return x * scale + a + b + c


def operators(program):
    return [str(node.target) for node in program.graph.nodes if node.op == "call_function"]


def test_a_real_module_is_exported_without_its_data():
    module = nn.Linear(4, 2)

    program = fe.export(module, (torch.ones(3, 4),), target="H100")

    assert isinstance(program, ExportedProgram)
    assert all(fe.is_fake(weight) for weight in program.state_dict.values())
    assert {str(weight.device) for weight in program.state_dict.values()} == {"cuda:0"}
    assert not fe.is_fake(module.weight)
    assert module.weight.device.type == "cpu"


def test_literals_add_no_node_that_the_device_would_not_have():
    on_cpu = fe.export(Literals, (torch.ones(3),))
    on_gpu = fe.export(Literals, (torch.ones(3),), target="H100")

    assert operators(on_gpu) == operators(on_cpu)


def test_literals_are_constants_on_the_device():
    program = fe.export(Literals, (torch.ones(3),), target="H100")

    assert {str(constant.device) for constant in program.constants.values()} == {"cuda:0"}


class Moved(nn.Module):
    def forward(self, x):
        return x + torch.tensor([1.0, 2.0, 3.0]).to(x.device)


def test_a_move_that_the_model_writes_stays_in_the_program():
    program = fe.export(Moved, (torch.ones(3),), target="H100")

    (transfer,) = fe.transfers(program)
    assert (transfer.source, transfer.target, transfer.bytes) == ("cpu", "cuda:0", 12)
    assert transfer.span is not None
    assert transfer.span.path == __file__


@pytest.mark.parametrize("topology", ["H100", "PVC-1550", "M2-Ultra", "MI300X"])
@pytest.mark.parametrize("strict", [False, True])
def test_parameters_that_require_grad_export_without_no_grad(topology, strict):
    program = fe.export(lambda: nn.Linear(4, 2), (torch.ones(3, 4),), target=topology, strict=strict)

    assert program.state_dict["weight"].requires_grad
    assert operators(program) == ["aten.linear.default"]


class AsksItsDevice(nn.Module):
    def forward(self, x):
        if torch.cuda.get_device_capability(x.device) >= (8, 0):
            return torch.relu(x)
        return torch.tanh(x)


@pytest.mark.parametrize(("topology", "expected"), [("T4", "tanh"), ("A100", "relu"), ("H100", "relu")])
def test_a_model_that_asks_its_device_gets_the_profiles_answer(topology, expected):
    program = fe.export(AsksItsDevice, (torch.ones(3),), target=topology)

    assert operators(program) == [f"aten.{expected}.default"]


def test_the_topology_around_the_call_is_used():
    with fe.emulate("2xA100-40GB"):
        program = fe.export(lambda: nn.Linear(4, 2), (torch.ones(3, 4),), device_map="cuda:1")

    assert str(program.state_dict["weight"].device) == "cuda:1"


def test_a_device_that_the_topology_lacks_is_a_bad_call():
    with pytest.raises(ValueError, match=r"cuda:1"):
        fe.export(lambda: nn.Linear(4, 2), (torch.ones(3, 4),), target="H100", device_map="cuda:1")


def test_the_models_own_error_is_raised_as_it_is():
    class Broken(nn.Module):
        def forward(self, x):
            raise KeyError("rotary")

    with pytest.raises(KeyError, match="rotary"):
        fe.export(Broken, (torch.ones(3),))


def test_the_device_is_gone_after_an_export():
    def refusal():
        with pytest.raises((AssertionError, RuntimeError)) as caught:
            torch.ones(1, device="cuda")
        return type(caught.value), str(caught.value)

    before = refusal()

    fe.export(Literals, (torch.ones(3),), target="H100")

    assert refusal() == before


def test_a_module_that_a_factory_takes_from_elsewhere_goes_to_the_target():
    module, x = nn.Linear(4, 2), torch.ones(3, 4)

    report = fe.check(lambda: (module, (x,)), target=["H100"])

    assert report.verdicts[0].summary.devices == ("cuda:0",)
    assert not fe.is_fake(module.weight)


def test_the_values_of_literals_on_a_virtual_device_are_kept():
    program = fe.export(Literals, (torch.ones(3),), target="H100")

    values = [constant_value(constant).tolist() for constant in program.constants.values()]
    assert values == [[1, 2, 3], [4, 5, 6], [7, 8, 9]]


def test_one_query_over_more_keys_is_refused_where_transformers_chose_causal_attention():
    sdpa = pytest.importorskip("transformers.integrations.sdpa_attention")

    class Attention(nn.Module):
        is_causal = True

        def forward(self, q, k):
            return sdpa.sdpa_attention_forward(self, q, k, k, None)[0]

    queries, keys = torch.randn(2, 1, 3, 8), torch.randn(2, 1, 7, 8)
    program = fe.export(Attention(), (queries, keys), dynamic_shapes=({2: Dim.AUTO}, {2: Dim.AUTO}))
    bound = fe.bind(program, {})

    assert torch.equal(bound.module()(queries, keys), Attention()(queries, keys))
    with pytest.raises(AssertionError, match=r"q\.size\(\)\[2\] > 1"):
        bound.module()(queries[:, :, :1], keys)


def test_a_dtype_is_given_as_torch_or_people_write_it():
    def model():
        return nn.Linear(4, 2), (torch.zeros(3, 4),)

    by_name = fe.export(model, dtype="bfloat16")

    assert by_name.state_dict["weight"].dtype is torch.bfloat16
    assert str(by_name.graph) == str(fe.export(model, dtype=torch.bfloat16).graph)
    with pytest.raises(ValueError, match=r"unknown floating-point dtype torch.int8: use float32"):
        fe.export(model, dtype=torch.int8)


def test_an_export_for_another_target_warns_that_the_process_may_remember_the_first_one(monkeypatch):
    has_gpu = functools.cache(torch.cuda.is_available)

    class Cached(nn.Module):
        def forward(self, x):
            return x * 2 if has_gpu() else x

    monkeypatch.setattr(export_module, "_exported_for", set())
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        fe.export(Cached, (torch.zeros(2),))
        fe.export(Cached, (torch.zeros(2),))

    with pytest.warns(SharedProcess, match=r"process: fe\.export already ran for cpu") as warned:
        program = fe.export(Cached, (torch.zeros(2),), target="H100")

    assert operators(program) == []  # Not what a machine with a GPU would run.
    assert warned[0].filename == __file__
