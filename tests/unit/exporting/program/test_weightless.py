"""A weight-less program refuses whatever would need its weights, in our words, and so do its copies."""

from __future__ import annotations

import copy
import pickle
import zipfile
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import nn
from torch.export import ExportedProgram

import fakexport as fe
from fakexport.exporting.program import WeightlessProgram, WeightsNotBoundError

MISSING = r"no weights; bind them first.*3 missing: fc\.weight, fc\.bias, scale$"


class Small(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.fc = nn.Linear(4, 4)
        self.register_buffer("scale", torch.ones(4))
        self.register_buffer("shift", torch.arange(4.0), persistent=False)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.fc(x) * self.scale + self.shift


@pytest.fixture(scope="module")
def archive(tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("weightless") / "model.pt2"
    fe.save(fe.export(Small, (torch.zeros(3, 4),), dynamic_shapes=["x.0=2..64"]), path)
    return path


@pytest.fixture
def unbound(archive: Path) -> ExportedProgram:
    return fe.load(archive)


def compiled(program: ExportedProgram) -> Any:
    return torch._inductor.aoti_compile_and_package(program)


def with_inputs(program: ExportedProgram) -> ExportedProgram:
    program.example_inputs = ((torch.zeros(3, 4),), {})
    return program


@pytest.mark.filterwarnings("ignore:Accessing the data pointer of FakeTensor")  # Torch's copy of a fake.
@pytest.mark.parametrize(
    "use",
    [
        lambda p: p.module(),
        lambda p: ExportedProgram.module(p),
        lambda p: torch.compile(p.module()),
        lambda p: p.run_decompositions(),  # with which torch.onnx.export and ExecuTorch begin
        lambda p: p.run_decompositions({}),
        compiled,
        lambda p: compiled(with_inputs(p)),
        lambda p: copy.copy(p).module(),
        lambda p: copy.deepcopy(p).module(),
        lambda p: compiled(copy.deepcopy(p)),
        lambda p: p._update(p.graph_module, p.graph_signature),  # what torch's passes end with
    ],
)
def test_it_is_refused_with_the_list_of_what_is_missing(
    use: Callable[[ExportedProgram], Any], unbound: ExportedProgram
) -> None:
    with pytest.raises(WeightsNotBoundError, match=MISSING) as caught:
        use(unbound)
    assert caught.value.names == ("fc.weight", "fc.bias", "scale")


def test_stock_torch_does_not_save_zeros_in_place_of_its_weights(
    unbound: ExportedProgram, tmp_path: Path
) -> None:
    with pytest.raises(WeightsNotBoundError, match=MISSING):
        torch.export.save(unbound, tmp_path / "stock.pt2")

    assert "model/models/model.json" not in zipfile.ZipFile(tmp_path / "stock.pt2").namelist()


def test_it_is_not_pickled(unbound: ExportedProgram) -> None:
    with pytest.raises((AttributeError, TypeError, pickle.PicklingError)):
        pickle.dumps(unbound)


def test_an_unflattened_one_computes_nothing(unbound: ExportedProgram) -> None:
    result = torch.export.unflatten(unbound)(torch.ones(3, 4))

    assert fe.is_fake(result)


@pytest.mark.filterwarnings("ignore:Accessing the data pointer of FakeTensor")
def test_it_is_an_exported_program_in_everything_else(unbound: ExportedProgram) -> None:
    assert isinstance(unbound, ExportedProgram)
    assert isinstance(unbound, WeightlessProgram)
    assert fe.diff(unbound, copy.deepcopy(unbound)).is_identical
    assert "ExportedProgram:" in str(unbound)


def test_it_runs_once_every_weight_is_there(unbound: ExportedProgram) -> None:
    eager = Small()
    unbound.state_dict["fc.weight"], unbound.state_dict["fc.bias"] = eager.fc.weight, eager.fc.bias
    with pytest.raises(WeightsNotBoundError, match="1 missing: scale"):
        unbound.module()
    unbound.state_dict["scale"] = eager.scale

    x = torch.randn(5, 4)
    assert torch.equal(unbound.module()(x), eager(x))


def test_a_program_without_weights_is_bound_before_it_runs_where_its_device_is_absent(tmp_path: Path) -> None:
    class Constant(nn.Module):
        def forward(self, x: torch.Tensor) -> torch.Tensor:
            return x + torch.tensor([1.0, 2.0], device=x.device)

    fe.save(fe.export(Constant, (torch.zeros(2),), target="H100"), tmp_path / "model.pt2")
    program = fe.load(tmp_path / "model.pt2")

    with pytest.raises(WeightsNotBoundError, match="1 missing: lifted_tensor_0"):
        program.module()
    assert fe.bind(program, {}, devices="cpu").module()(torch.zeros(2)).tolist() == [1.0, 2.0]
