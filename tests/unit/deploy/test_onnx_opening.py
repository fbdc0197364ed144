"""An ONNX file runs with all of its weights and the inputs of its program, or is refused in one line."""

from __future__ import annotations

import random
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import nn
from torch.export import Dim

onnx = pytest.importorskip("onnx")
pytest.importorskip("onnxscript")
pytest.importorskip("onnxruntime")
pytestmark = pytest.mark.usefixtures("torchlib_read_once")

import fakexport as fe  # noqa: E402
from fakexport.archive.weights import BindError, CheckpointError  # noqa: E402
from fakexport.deploy import DeployError, InputMismatchError, artifact_kind  # noqa: E402
from fakexport.deploy.onnx import compile_onnx, open_onnx  # noqa: E402
from fakexport.deploy.onnx.description import KEY, Description  # noqa: E402
from fakexport.deploy.opening import open_artifact  # noqa: E402
from fakexport.deploy.weights_file import OWNER  # noqa: E402


class Net(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.linear = nn.Linear(4, 4)

    def forward(self, x: torch.Tensor, y: torch.Tensor) -> torch.Tensor:
        return self.linear(x) + y


@pytest.fixture(scope="module")
def files(tmp_path_factory: pytest.TempPathFactory) -> dict[str, dict[str, bytes]]:
    """The files of one model with its weights inside and beside, and its weights as zeros and ones."""
    folder = tmp_path_factory.mktemp("onnx")
    size = Dim("size", min=3, max=8)
    dynamic = {"x": {0: 2 * size}, "y": {0: 2 * size}}
    program = fe.export(Net, (torch.zeros(6, 4), torch.zeros(6, 4)), dynamic_shapes=dynamic)
    compile_onnx(fe.bind(program, WEIGHTS), folder / "inside.onnx")
    compile_onnx(fe.bind(program, WEIGHTS), folder / "m.onnx", weights="beside")
    return {path.name: path.read_bytes() for path in folder.iterdir()}  # type: ignore[misc]


WEIGHTS = {"linear.weight": torch.ones(4, 4), "linear.bias": torch.full((4,), 2.0)}
INPUTS = {"x": torch.ones(8, 4), "y": torch.ones(8, 4)}
EXPECTED = {"output": torch.full((8, 4), 7.0)}


@pytest.fixture
def folder(files: dict[str, bytes], tmp_path: Path) -> Path:
    for name, content in files.items():
        (tmp_path / name).write_bytes(content)
    return tmp_path


@pytest.mark.slow
def test_it_is_opened_as_every_compiled_form_is(folder: Path) -> None:
    for name in ("inside.onnx", "m.onnx"):
        kind = artifact_kind(folder / name)
        assert kind == "onnx"
        torch.testing.assert_close(open_artifact(folder / name, kind)(INPUTS), EXPECTED)


def test_inputs_that_the_program_does_not_take_are_refused(folder: Path) -> None:
    with pytest.raises(InputMismatchError, match="the program expects 8"):
        open_onnx(folder / "m.onnx")({**INPUTS, "y": torch.ones(6, 4)})


def test_weights_that_are_missing_or_damaged_are_refused(folder: Path) -> None:
    beside = folder / "m.safetensors"

    with pytest.raises(BindError, match=r"does not fit m\.onnx: 1 of 2 weights do not fit: FE701"):
        open_onnx(folder / "m.onnx", checkpoint={"linear.weight": WEIGHTS["linear.weight"]})
    beside.write_bytes(beside.read_bytes()[:-1])
    with pytest.raises(CheckpointError, match=r"m\.safetensors"):
        open_onnx(folder / "m.onnx")
    beside.unlink()
    with pytest.raises(DeployError, match=r"m\.onnx has no weights: .*m\.safetensors is missing"):
        open_onnx(folder / "m.onnx")


def test_weights_of_another_compilation_are_not_taken_for_those_of_the_model(folder: Path) -> None:
    """An interruption between the two files leaves an old model, and new weights that look the same."""
    from safetensors.torch import load_file, save_file

    beside = folder / "m.safetensors"
    save_file(load_file(beside), beside, metadata={OWNER: "ab" * 32})

    with pytest.raises(DeployError, match=r"m\.safetensors was written for a different m\.onnx"):
        open_onnx(folder / "m.onnx")


def test_other_weights_are_bound_and_none_where_they_are_inside(folder: Path) -> None:
    others = {name: torch.zeros_like(weight) for name, weight in WEIGHTS.items()}

    found = open_onnx(folder / "m.onnx", checkpoint=others)(INPUTS)

    torch.testing.assert_close(found, {"output": INPUTS["y"]})
    with pytest.raises(DeployError, match="contains its weights"):
        open_onnx(folder / "inside.onnx", checkpoint=others)


def test_a_foreign_model_is_refused(tmp_path: Path) -> None:
    made = torch.onnx.export(torch.export.export(nn.ReLU(), (torch.ones(2),)), verbose=False)
    assert made is not None
    made.save(tmp_path / "m.onnx")

    with pytest.raises(DeployError, match="was not written by `fakexport compile`"):
        open_onnx(tmp_path / "m.onnx")


def changed(path: Path, change: Callable[[Any], None]) -> Path:
    """The file after a change of somebody who seals it anew, and the weights beside it with it."""
    model = onnx.load_model(path, load_external_data=False)
    change(model)
    (entry,) = (entry for entry in model.metadata_props if entry.key == KEY)
    described = Description.from_json(entry.value.encode())
    sealed = described.sealed(model)
    entry.value = sealed.to_json()
    path.write_bytes(model.SerializeToString())
    if sealed.file:
        beside = path.with_name(sealed.file)
        beside.write_bytes(beside.read_bytes().replace(described.digest.encode(), sealed.digest.encode()))
    return path


def set_location(tensor: Any, location: str) -> None:
    tensor.data_location = onnx.TensorProto.EXTERNAL
    tensor.ClearField("raw_data")
    tensor.ClearField("external_data")
    tensor.external_data.add(key="location", value=location)


@pytest.mark.parametrize("location", ["../secret", "/etc/passwd", "m.safetensors"])
def test_a_tensor_that_names_a_file_and_is_no_weight_is_refused(folder: Path, location: str) -> None:
    def constant(model: Any) -> None:
        tensor = model.graph.initializer.add(name="stolen", dims=[4], data_type=onnx.TensorProto.UINT8)
        set_location(tensor, location)

    def attribute(model: Any) -> None:
        node = model.graph.node.add(op_type="Constant", output=["stolen"])
        tensor = onnx.TensorProto(dims=[4], data_type=onnx.TensorProto.UINT8)
        set_location(tensor, location)
        node.attribute.add(name="value", type=onnx.AttributeProto.TENSOR, t=tensor)

    with pytest.raises(DeployError, match=r"stores 'stolen' in another file, but its metadata does not"):
        open_onnx(changed(folder / "m.onnx", constant))
    with pytest.raises(DeployError, match=r"stores a tensor in another file, but only weights of the main"):
        open_onnx(changed(folder / "inside.onnx", attribute))


@pytest.mark.parametrize("location", ["../m.safetensors", "/etc/passwd"])
def test_the_place_of_a_weight_in_the_graph_is_never_opened(folder: Path, location: str) -> None:
    def moved(model: Any) -> None:
        for tensor in model.graph.initializer:
            if tensor.name in WEIGHTS:
                set_location(tensor, location)

    torch.testing.assert_close(open_onnx(changed(folder / "m.onnx", moved))(INPUTS), EXPECTED)


@pytest.mark.parametrize("name", ["../m.safetensors", "/m.safetensors", "c:m.safetensors", "passwd"])
def test_weights_are_looked_for_in_the_folder_of_the_model_alone(folder: Path, name: str) -> None:
    def moved(model: Any) -> None:
        (entry,) = (entry for entry in model.metadata_props if entry.key == KEY)
        entry.value = entry.value.replace('"file":"m.safetensors"', f'"file":"{name}"')

    with pytest.raises(Exception, match="is not a valid name of a file next to the model"):
        changed(folder / "m.onnx", moved)


def test_a_weight_that_is_described_otherwise_than_the_graph_has_it_is_refused(folder: Path) -> None:
    def larger(model: Any) -> None:
        for tensor in model.graph.initializer:
            if tensor.name in WEIGHTS:
                tensor.dims[0] = 5

    with pytest.raises(DeployError, match="has a different shape or dtype than in its metadata"):
        open_onnx(changed(folder / "m.onnx", larger))


def test_inputs_of_another_graph_are_refused(folder: Path) -> None:
    def renamed(model: Any) -> None:
        model.graph.input[0].name = "z"

    with pytest.raises(DeployError):
        open_onnx(changed(folder / "m.onnx", renamed))


def test_what_onnx_runtime_refuses_is_one_line_and_nothing_is_printed(
    folder: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    def unknown(model: Any) -> None:
        model.graph.node[0].op_type = "Nothing"

    with pytest.raises(DeployError, match=r"m\.onnx: ONNX Runtime rejects the model: .*Nothing") as raised:
        open_onnx(changed(folder / "m.onnx", unknown))

    assert "\n" not in str(raised.value)
    assert capfd.readouterr() == ("", "")


@pytest.mark.parametrize("name", ["inside.onnx", "m.onnx"])
def test_damage_anywhere_is_refused_in_one_line(folder: Path, name: str) -> None:
    content = (folder / name).read_bytes()
    chance = random.Random(0)
    for _ in range(200):
        damaged = bytearray(content)
        damaged[chance.randrange(len(damaged))] ^= 1 << chance.randrange(8)
        cut = damaged[: chance.randrange(len(damaged))]
        for bad in (damaged, cut):
            (folder / name).write_bytes(bad)

            with pytest.raises((DeployError, OSError)) as raised:
                open_onnx(folder / name)

            assert "\n" not in str(raised.value)
