"""ONNX files with the names of Optimum, and with a chosen opset, for code that was written for such files."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch
from torch import nn

onnx = pytest.importorskip("onnx")
pytest.importorskip("onnxscript")
onnxruntime = pytest.importorskip("onnxruntime")
pytestmark = pytest.mark.usefixtures("torchlib_read_once")

import fakexport as fe  # noqa: E402
from fakexport.deploy.onnx import compile_onnx, open_onnx  # noqa: E402
from fakexport.deploy.onnx.optimum_names import with_optimum_names  # noqa: E402
from fakexport.deploy.signature import Dimension, InputTensor, OutputTensor, Signature  # noqa: E402
from fakexport.exporting.interface import Condition, Operation, Question  # noqa: E402
from fakexport.files.documents import CallRecord, StateTensor  # noqa: E402


def call(*state: str, workload: str = "decode") -> CallRecord:
    tensors = (StateTensor(name, name.replace(".", "_"), name) for name in state)
    return CallRecord(workload=workload, tokens="ids", logits="logits", prompt="ids", state=tuple(tensors))


def test_keys_and_values_get_their_names_in_inputs_outputs_and_conditions() -> None:
    keys = InputTensor("past_key_values_layers_3_keys", "float32", (Dimension("s1", 1),), "cpu")
    even = Condition(Operation("==", (Question(keys.name, "size", 0), 4)))
    outputs = (OutputTensor("logits", True), OutputTensor("past_key_values.layers_3_keys", True))
    signature = Signature((keys,), outputs, (even,), written=(keys.name,))

    named = with_optimum_names(signature, call("past_key_values.layers_3_keys"))

    assert [each.name for each in named.inputs] == ["past_key_values.3.key"]
    assert [each.name for each in named.outputs] == ["logits", "present.3.key"]
    assert str(named.conditions[0]) == "past_key_values.3.key.shape[0] == 4"
    assert named.written == ("past_key_values.3.key",)


@pytest.mark.parametrize("name", ["cache_params.layers_0_conv_states", "encoder_outputs.0"])
def test_a_state_that_optimum_has_no_name_for_is_an_error(name: str) -> None:
    with pytest.raises(ValueError, match=rf"^Optimum has no name for {name}, which .*--names optimum$"):
        with_optimum_names(Signature((), ()), call(name))


class TextAndImage(nn.Module):
    """As CLIP: each text is compared with each image."""

    def __init__(self) -> None:
        super().__init__()
        self.table, self.patch = nn.Embedding(9, 4), nn.Conv2d(3, 4, 2)

    def forward(self, input_ids: torch.Tensor, pixel_values: torch.Tensor) -> dict[str, torch.Tensor]:
        texts, images = self.table(input_ids), self.patch(pixel_values).mean((2, 3))
        return {"logits_per_text": texts.mean(1) @ images.T, "last_hidden_state": texts}


@pytest.fixture(scope="module")
def clip() -> fe.ExportedProgram:
    torch.manual_seed(0)
    model, inputs = TextAndImage(), (torch.zeros(2, 5, dtype=torch.long), torch.zeros(3, 3, 8, 6))
    program = fe.export(model, inputs, dynamic_shapes="auto")
    return fe.bind(program, dict(model.state_dict()))


def shapes(values: object) -> dict[str, list[object]]:
    return {value.name: value.shape for value in values}  # type: ignore[attr-defined]


def test_axes_are_named_and_texts_and_images_have_batches_of_their_own(
    clip: fe.ExportedProgram, tmp_path: Path
) -> None:
    compile_onnx(clip, tmp_path / "m.onnx", names="optimum")

    session = onnxruntime.InferenceSession(tmp_path / "m.onnx")
    assert shapes(session.get_inputs()) == {
        "input_ids": ["batch_size", "sequence_length"],
        "pixel_values": ["image_batch_size", 3, "height", "width"],
    }
    assert shapes(session.get_outputs()) == {
        "logits_per_text": ["batch_size", "image_batch_size"],
        "last_hidden_state": ["batch_size", "sequence_length", 4],
    }
    inputs = {"input_ids": torch.ones(4, 7, dtype=torch.long), "pixel_values": torch.randn(2, 3, 5, 9)}
    found = session.run(None, {name: tensor.numpy() for name, tensor in inputs.items()})
    expected = clip.module()(*inputs.values())
    for array, tensor in zip(found, expected.values(), strict=True):
        torch.testing.assert_close(torch.from_numpy(array), tensor)
    assert open_onnx(tmp_path / "m.onnx")(inputs).keys() == expected.keys()


def test_without_the_option_the_names_of_the_program_stay(clip: fe.ExportedProgram, tmp_path: Path) -> None:
    compile_onnx(clip, tmp_path / "m.onnx")

    session = onnxruntime.InferenceSession(tmp_path / "m.onnx")
    symbols = {size for value in session.get_inputs() for size in value.shape if isinstance(size, str)}
    assert len(symbols) == 5
    assert all(symbol.startswith("s") and symbol[1:].isdigit() for symbol in symbols)


@pytest.mark.parametrize("opset", [18, 21, 23])
def test_the_file_has_the_opset_that_was_asked_for(
    clip: fe.ExportedProgram, tmp_path: Path, opset: int
) -> None:
    compile_onnx(clip, tmp_path / "m.onnx", opset=opset)

    versions = {each.domain: each.version for each in onnx.load(tmp_path / "m.onnx").opset_import}
    assert versions[""] == opset


@pytest.mark.parametrize(
    ("options", "reason"), [({"names": "optima"}, "names must be"), ({"opset": 17}, "opset 17 is not")]
)
def test_an_unknown_name_or_opset_is_bad_usage(
    clip: fe.ExportedProgram, tmp_path: Path, options: dict[str, object], reason: str
) -> None:
    with pytest.raises(ValueError, match=reason):
        compile_onnx(clip, tmp_path / "m.onnx", **options)  # type: ignore[arg-type]

    assert not list(tmp_path.iterdir())
