"""Archives of `torch.export.save`: read by our own codec where nothing is pickled, by torch on trust."""

from __future__ import annotations

import io
import json
import zipfile
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import nn
from torch._export.serde import serialize as stock
from torch.export import Dim, ExportedProgram

import fakexport as fe
from fakexport.archive import describe
from fakexport.archive.loading import load_archive
from fakexport.archive.methods import methods_of
from fakexport.archive.stock_archive import NO_MANIFEST
from fakexport.archive.stored_tensor import WEIGHTS_CONFIG, MethodRecords
from fakexport.exporting.program import WeightsNotBoundError
from fakexport.files.container import ArchiveError
from fakexport.files.container.writer import write_container
from tests.same_nodes import nodes_equal
from tests.unit.archive.described import records_of
from tests.unit.archive.test_save_and_load import Tied


class Views(nn.Module):
    """Buffers that look at parts of one memory, one of no elements, and an unused parameter."""

    def __init__(self) -> None:
        super().__init__()
        whole = torch.arange(12.0)
        self.register_buffer("head", whole[:6].view(2, 3))
        self.register_buffer("tail", whole[6:].view(3, 2).t())
        self.register_buffer("none", torch.zeros(0, 3))
        self.register_buffer("shift", whole[3:6], persistent=False)
        self.unused = nn.Parameter(torch.ones(2))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return x * self.head + self.tail + self.shift + self.none.sum()


IDS = torch.arange(5)
MODELS: dict[str, tuple[Callable[[], nn.Module], torch.Tensor, Any]] = {
    "mlp": (lambda: nn.Sequential(nn.Linear(4, 8), nn.ReLU(), nn.Linear(8, 2)), torch.randn(3, 4), None),
    "tied": (lambda: Tied().eval(), IDS, ({0: Dim("rows", min=2, max=64)},)),
    "views": (Views, torch.randn(2, 3), None),
}


def saved(program: ExportedProgram, path: Path) -> Path:
    """As a user would save it who does not want to ship inputs: nothing in it is pickled."""
    program.example_inputs = None
    torch.export.save(program, path)
    return path


@pytest.mark.filterwarnings("ignore:No complete tensor found")  # Torch, about views.
@pytest.mark.parametrize("name", MODELS)
def test_a_real_program_is_the_one_that_torch_loads(name: str, tmp_path: Path) -> None:
    make, example, shapes = MODELS[name]
    torch.manual_seed(0)
    program = torch.export.export(make(), (example,), dynamic_shapes=shapes)
    path = saved(program, tmp_path / "stock.pt2")

    loaded = load_archive(path)

    by_torch = torch.export.load(path)
    assert nodes_equal(loaded.program, by_torch) == ()
    assert loaded.notes == (NO_MANIFEST,)
    assert list(loaded.program.state_dict) == list(by_torch.state_dict)
    longer = example if shapes is None else torch.cat([example, example], dim=-1)
    for inputs in (example, longer):
        assert torch.equal(loaded.program.module()(inputs), by_torch.module()(inputs))
    for tensor, twin in zip(loaded.program.state_dict.values(), by_torch.state_dict.values(), strict=True):
        assert torch.equal(tensor, twin)
        assert (type(tensor), tensor.requires_grad, tensor.stride()) == (
            type(twin),
            twin.requires_grad,
            twin.stride(),
        )


@pytest.mark.parametrize("topology", ["cpu", "H100"])
def test_a_fake_program_has_fakes_and_no_zeros(topology: str, tmp_path: Path) -> None:
    make, example, _ = MODELS["tied"]
    program = fe.export(make, (example,), target=topology)
    path = saved(program, tmp_path / "fake.pt2")

    loaded = load_archive(path)

    assert nodes_equal(loaded.program, program) == ()
    assert all(map(fe.is_fake, loaded.program.state_dict.values()))
    assert "fakexport loads fake tensors instead, and torch loads zeros" in loaded.notes[1]
    with pytest.raises(WeightsNotBoundError):
        loaded.program.module()


@pytest.fixture
def pickled(tmp_path: Path) -> Path:
    """What `torch.export.save` writes by default: with the example inputs."""
    path = tmp_path / "pickled.pt2"
    torch.export.save(torch.export.export(nn.Linear(4, 2), (torch.ones(3, 4),)), path)
    return path


def pickle_a_weight(path: Path, method: str, state: Mapping[str, torch.Tensor]) -> None:
    """Makes the first weight of a program a record that torch unpickles."""
    kept = records_of(path, trust=True)
    config = json.loads(kept[MethodRecords(method).weights])
    name, entry = next(iter(config["config"].items()))
    content = io.BytesIO()
    torch.save(nn.Parameter(state[name].detach()), content)
    entry["use_pickle"], entry["path_name"] = True, "weight_999"
    kept[MethodRecords(method).weights] = json.dumps(config).encode()
    write_container(path, {**kept, "data/weights/weight_999": content.getvalue()}, folder_name="model")


@pytest.mark.parametrize("trust", [False, True])
def test_pickled_example_inputs_are_not_read(pickled: Path, trust: bool, monkeypatch) -> None:
    by_torch = torch.export.load(pickled)
    monkeypatch.setattr(torch, "load", lambda *args, **kwargs: pytest.fail("it was unpickled"))
    monkeypatch.setattr(torch.export, "load", lambda *args, **kwargs: pytest.fail("torch read it"))

    loaded = load_archive(pickled, trust=trust)

    assert nodes_equal(loaded.program, by_torch) == ()
    assert not loaded.program.example_inputs[0][0].any()  # Not the ones of the file: zeros of the same size.
    assert torch.equal(loaded.program.state_dict["weight"], by_torch.state_dict["weight"])
    assert loaded.notes[-1] == "the example inputs are pickled and were not read"
    assert describe(pickled).notes == loaded.notes


def test_pickled_weights_need_trust(pickled: Path) -> None:
    by_torch = torch.export.load(pickled)
    pickle_a_weight(pickled, "model", by_torch.state_dict)
    with pytest.raises(ArchiveError, match="is a pickled payload, rejected by default") as no:
        fe.load(pickled)
    assert no.value.is_trust_missing

    trusted = load_archive(pickled, trust=True)

    assert nodes_equal(trusted.program, by_torch) == ()
    assert torch.equal(trusted.program.example_inputs[0][0], torch.ones(3, 4))
    assert torch.equal(trusted.program.state_dict["weight"], by_torch.state_dict["weight"])
    assert trusted.notes == ("trusted: torch read the file, which can run code from it",)


class Touch:
    """What an attacker would pickle."""

    def __init__(self, path: Path) -> None:
        self.path = path

    def __reduce__(self) -> tuple[Any, ...]:
        return Path.touch, (self.path,)


def test_nothing_pickled_is_run_but_by_torch_on_trust(pickled: Path, tmp_path: Path) -> None:
    mark = tmp_path / "it ran"
    kept = records_of(pickled, trust=True)
    content = io.BytesIO()
    torch.save(Touch(mark), content)
    kept["data/weights/weight_0"], kept["data/sample_inputs/model.pt"] = content.getvalue(), b""
    config = json.loads(kept[WEIGHTS_CONFIG])
    config["config"]["weight"]["use_pickle"] = True
    kept[WEIGHTS_CONFIG] = json.dumps(config).encode()
    write_container(pickled, kept, folder_name="model")

    describe(pickled, trust=True)
    fe.verify_weights(pickled, dict(nn.Linear(4, 2).state_dict()), trust=True)
    for read in (fe.load, describe):
        with pytest.raises(ArchiveError, match="`weight` is a pickled payload, rejected by default"):
            read(pickled)
    assert not mark.exists()

    with pytest.raises(ArchiveError, match=r"torch\.export\.load cannot read it"):  # It gives no tensor.
        fe.load(pickled, trust=True)
    assert mark.exists()  # Torch ran it: that is what `trust` allows.


def legacy(path: Path, program: ExportedProgram) -> Path:
    """The layout of torch 2.7 and before."""
    artifact = stock.serialize(program)
    with zipfile.ZipFile(path, "w") as archive:
        archive.writestr("version", "8.8")
        archive.writestr("serialized_exported_program.json", artifact.exported_program)
        archive.writestr("serialized_state_dict.pt", artifact.state_dict)
        archive.writestr("serialized_constants.pt", artifact.constants)
        archive.writestr("serialized_example_inputs.pt", artifact.example_inputs)
    return path


def test_the_layout_before_torch_2_8_needs_trust(tmp_path: Path) -> None:
    program = torch.export.export(nn.Linear(4, 2), (torch.ones(3, 4),))
    path = legacy(tmp_path / "old.pt2", program)

    assert methods_of(path, trust=True) == ()
    with pytest.raises(ArchiveError, match="legacy layout from before torch"):
        fe.load(path)
    assert nodes_equal(fe.load(path, trust=True), program) == ()


@pytest.mark.parametrize(
    ("change", "message"),
    [
        (
            lambda w: w.update(path_name="weight_7"),
            "path_name: the record 'data/weights/weight_7' is missing",
        ),
        (
            lambda w: w.update(path_name="../constants/x"),
            "is missing",
        ),
        (lambda w: w["tensor_meta"]["sizes"][0].update(as_int=1 << 40), "1 of 2 weights have no data"),
        (lambda w: w["tensor_meta"].update(storage_offset={"as_int": 1 << 63}), "a plain integer"),
        (lambda w: w.update(tensor_meta=None), "tensor_meta: expected an object"),
        (lambda w: w["tensor_meta"].update(strides=[]), "tensor_meta: 2 sizes but 0 strides"),
        (lambda w: w["tensor_meta"].update(dtype=6), "weight: has a different shape or dtype in the graph"),
        (lambda w: w["tensor_meta"]["device"].update(type="cuda", index=0), "is on cuda:0, which is not on"),
    ],
)
def test_a_bent_config_is_refused_in_one_line(
    change: Callable[[dict[str, Any]], None], message: str, tmp_path: Path
) -> None:
    path = saved(torch.export.export(nn.Linear(4, 2), (torch.ones(3, 4),)), tmp_path / "stock.pt2")
    kept = records_of(path)
    document = json.loads(kept[WEIGHTS_CONFIG])
    change(document["config"]["weight"])
    kept[WEIGHTS_CONFIG] = json.dumps(document).encode()
    write_container(path, kept, folder_name="model")

    with pytest.raises(ArchiveError, match=message) as caught:
        fe.load(path)
    assert "\n" not in str(caught.value)
