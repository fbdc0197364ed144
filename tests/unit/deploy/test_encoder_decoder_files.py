"""The ONNX files of an encoder and a decoder, which code that was written for Optimum's files can run."""

from __future__ import annotations

import sys
import warnings
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import nn

pytest.importorskip("transformers")
pytest.importorskip("onnxscript")
onnxruntime = pytest.importorskip("onnxruntime")
pytestmark = [
    pytest.mark.usefixtures("torchlib_read_once"),
    pytest.mark.filterwarnings("ignore:FE704"),  # The models of BART have a table that no part reads.
]

from transformers.generation import GenerationMixin  # noqa: E402

import fakexport as fe  # noqa: E402
from fakexport.deploy.onnx import open_onnx  # noqa: E402
from tests.generation.agreement import prompt  # noqa: E402
from tests.generation.families import NAMED, Family  # noqa: E402

sys.path.append(str(Path(__file__).parents[3] / "examples"))
import onnx_seq2seq  # noqa: E402

NEW_TOKENS = 12
OTHERS = (
    Family(
        "pegasus",
        "PegasusForConditionalGeneration",
        {**NAMED["marian"].config, "max_position_embeddings": 128},
        "summaries",
    ),
    Family(
        "speech_to_text",
        "Speech2TextForConditionalGeneration",
        {**NAMED["whisper"].config, "input_feat_per_channel": 8, "max_source_positions": 64},
        "speech to text",
        reads_text=False,
    ),
)
FAMILIES = (*(NAMED[name] for name in ("t5", "bart", "marian", "mbart", "whisper")), *OTHERS)


def exported(folder: Path) -> fe.Bundle:
    """The programs of `fakexport export --workload generate --component all --dynamic auto`."""
    parts: dict[str, tuple[Any, str]] = {
        "encoder": ("forward", "encoder"),
        "decoder": ("prefill", "decoder"),
        "decoder_with_past": ("decode", "decoder"),
    }
    programs = {
        method: fe.export(f"hf:{folder}", workload=workload, component=component, dynamic_shapes="auto")
        for method, (workload, component) in parts.items()
    }
    fe.save_bundle(programs, folder / "model.pt2")
    return fe.load_bundle(folder / "model.pt2")


def padded(*lengths: int) -> dict[str, torch.Tensor]:
    rows = [prompt(length)[0] for length in lengths]
    ids = torch.nn.utils.rnn.pad_sequence(rows, batch_first=True)
    mask = torch.nn.utils.rnn.pad_sequence([torch.ones_like(row) for row in rows], batch_first=True)
    return {"input_ids": ids, "attention_mask": mask}


def calls_of(family: Family) -> list[tuple[dict[str, torch.Tensor], int]]:
    """Inputs of the encoder, and how many tokens the decoder starts with: none as in the export."""
    numbers = torch.Generator().manual_seed(1)
    if not family.reads_text:
        shapes = [(1, 8, 32), (3, 8, 32)] if family.name == "whisper" else [(1, 26, 8), (3, 40, 8)]
        sounds = [torch.randn(shape, generator=numbers) for shape in shapes]
        return [({"input_features": sound}, len(sound)) for sound in sounds]
    return [(padded(5), 1), (padded(21, 7, 13), 3)]


def eager(model: Any, start: torch.Tensor, inputs: Mapping[str, torch.Tensor]) -> Any:
    """What transformers generates greedily, with nothing but the most likely token in each step."""
    for name in ("eos_token_id", "forced_eos_token_id", "forced_bos_token_id", "suppress_tokens"):
        setattr(model.generation_config, name, None)
    with torch.no_grad(), warnings.catch_warnings():
        warnings.simplefilter("ignore")
        return GenerationMixin.generate(
            model,
            **inputs,
            decoder_input_ids=start,
            max_new_tokens=NEW_TOKENS,
            do_sample=False,
            num_beams=1,
            return_dict_in_generate=True,
            output_logits=True,
        )


@pytest.mark.parametrize(
    "family",
    [
        pytest.param(FAMILIES[0], id="t5"),
        *(
            pytest.param(
                family,
                id=family.name,
                marks=[pytest.mark.slow, pytest.mark.chosen]
                if family.name == "whisper"
                else pytest.mark.exhaustive,
            )
            for family in FAMILIES[1:]
        ),
    ],
)
def test_a_loop_with_the_files_generates_what_transformers_does(family: Family, tmp_path: Path) -> None:
    model: Any = family.saved(tmp_path)
    fe.compile(exported(tmp_path), tmp_path / "onnx", tmp_path, to="onnx", names="optimum")
    sessions = onnx_seq2seq.opened(tmp_path / "onnx")
    if family.reads_text:
        axes = [value.shape for value in sessions[0].get_inputs()]
        assert axes == [["batch_size", "encoder_sequence_length"]] * 2

    for inputs, length in calls_of(family):
        batch = len(next(iter(inputs.values())))
        start = prompt(length, batch)
        start[:, 0] = model.generation_config.decoder_start_token_id
        expected = eager(model, start, inputs)
        arrays = {name: tensor.numpy() for name, tensor in inputs.items()}
        found = [*onnx_seq2seq.generate(sessions, start.numpy(), NEW_TOKENS, **arrays)]
        tokens = torch.cat([torch.from_numpy(token) for token, _ in found], dim=1)
        assert torch.equal(tokens, expected.sequences[:, length:])
        assert len(set(tokens.flatten().tolist())) > 2, "weights that repeat a token prove nothing"
        for (_, logits), scores in zip(found, expected.logits, strict=True):
            tolerance = 1e-4 * max(1.0, scores.abs().max().item())
            torch.testing.assert_close(torch.from_numpy(logits), scores, rtol=0, atol=tolerance)


class Step(nn.Module):
    """A decoder of two layers that reads one token and the cache. It does not read the encoder's output."""

    def forward(self, decoder_input_ids: torch.Tensor, encoder_outputs: Any, past_key_values: Any) -> Any:
        heads = torch.ones(2, 1, 3)
        cache = {name: tensor * heads for name, tensor in past_key_values.items()}
        total = sum(tensor.sum((1, 2, 3)) for tensor in cache.values())
        new = decoder_input_ids[:, None, :, None].float()
        grown = {
            name: torch.cat([tensor, new.expand(-1, 2, -1, 3)], dim=2)
            for name, tensor in cache.items()
            if "self" in name
        }
        return {"logits": decoder_input_ids * total[:, None], "past_key_values": grown}


class Scale(nn.Module):
    def forward(self, input_ids: torch.Tensor) -> dict[str, torch.Tensor]:
        return {"last_hidden_state": input_ids * 2.0}


def step_inputs(batch: int, past: int, source: int) -> dict[str, Any]:
    lengths = {"self": past, "cross": source}
    cache = {
        f"{part}_attention_cache_layers_{layer}_{kind}": torch.randn(batch, 2, length, 3)
        for part, length in lengths.items()
        for layer in range(2)
        for kind in ("keys", "values")
    }
    ids = torch.arange(batch)[:, None]
    return {"decoder_input_ids": ids, "encoder_outputs": (torch.ones(batch, 4),), "past_key_values": cache}


@pytest.fixture(scope="module")
def bundle(tmp_path_factory: pytest.TempPathFactory) -> fe.Bundle:
    path = tmp_path_factory.mktemp("bundle") / "model.pt2"
    step = fe.export(Step(), (), step_inputs(2, 5, 7), dynamic_shapes="auto")
    ids = torch.ones(2, 6, dtype=torch.long)
    programs = {"encoder": fe.export(Scale(), (ids,), dynamic_shapes="auto"), "decoder_with_past": step}
    fe.save_bundle(programs, path)
    return fe.load_bundle(path)


def test_each_program_is_a_file_with_the_names_and_the_order_of_optimum(
    bundle: fe.Bundle, tmp_path: Path
) -> None:
    made = fe.compile(bundle, tmp_path / "onnx", to="onnx", names="optimum")

    path = tmp_path / "onnx" / "decoder_with_past_model.onnx"
    assert made.files == (path, tmp_path / "onnx" / "encoder_model.onnx")
    session = onnxruntime.InferenceSession(path)
    lengths = {"decoder": "past_decoder_sequence_length", "encoder": "encoder_sequence_length"}
    assert {value.name: value.shape for value in session.get_inputs()} == {
        "input_ids": ["batch_size", 1],
        **{
            f"past_key_values.{layer}.{part}.{kind}": ["batch_size", 2, length, 3]
            for layer in range(2)
            for part, length in lengths.items()
            for kind in ("key", "value")
        },
    }
    cached = [value.name for value in session.get_inputs()][1:]
    assert cached == sorted(cached)
    assert [value.name for value in session.get_outputs()] == [
        "logits",
        *(f"present.{layer}.decoder.{kind}" for layer in range(2) for kind in ("key", "value")),
    ]
    inputs = step_inputs(3, 0, 4)
    expected = Step()(**inputs)
    parts = {"self": "decoder", "cross": "encoder"}
    tensors = {"input_ids": inputs["decoder_input_ids"]}
    for name, tensor in inputs["past_key_values"].items():
        part, *_, layer, kind = name.split("_")
        tensors[f"past_key_values.{layer}.{parts[part]}.{kind[:-1]}"] = tensor
    found = open_onnx(path)(tensors)
    torch.testing.assert_close(found["logits"], expected["logits"])
    for name, tensor in expected["past_key_values"].items():
        *_, layer, kind = name.split("_")
        torch.testing.assert_close(found[f"present.{layer}.decoder.{kind[:-1]}"], tensor, msg=name)


def test_without_the_names_of_optimum_the_files_have_the_names_of_the_methods(
    bundle: fe.Bundle, tmp_path: Path
) -> None:
    fe.compile(bundle, tmp_path / "onnx", to="onnx")

    assert sorted(path.name for path in (tmp_path / "onnx").iterdir()) == [
        "decoder_with_past.onnx",
        "encoder.onnx",
    ]
    session = onnxruntime.InferenceSession(tmp_path / "onnx" / "decoder_with_past.onnx")
    assert "encoder_outputs_0" in [value.name for value in session.get_inputs()]


def test_a_path_that_cannot_become_a_folder_is_one_line(bundle: fe.Bundle, tmp_path: Path) -> None:
    (tmp_path / "file").touch()

    with pytest.raises(ValueError, match=r"choose a program with --method encoder\|decoder_with_past$"):
        fe.compile(bundle, tmp_path / "model.onnx", to="onnx")
    with pytest.raises(fe.DeployError, match=r"is not empty: pass a new folder$"):
        fe.compile(bundle, tmp_path, to="onnx")
    with pytest.raises(fe.DeployError, match=r"is not a folder: pass a new folder$"):
        fe.compile(bundle, tmp_path / "file", to="onnx")
    assert [path.name for path in tmp_path.iterdir()] == ["file"]
