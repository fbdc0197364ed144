"""Small real models of transformers give in ONNX Runtime what they give in torch."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import torch
from torch.export import Dim

pytest.importorskip("onnx")
pytest.importorskip("onnxscript")
pytest.importorskip("onnxruntime")
transformers = pytest.importorskip("transformers")
pytestmark = pytest.mark.usefixtures("torchlib_read_once")

import fakexport as fe  # noqa: E402
from fakexport.deploy import UnsuitableInputs  # noqa: E402
from fakexport.deploy.onnx import compile_onnx, open_onnx  # noqa: E402

TOLERANCE = 2e-6
"""Absolute, for outputs of about 1; measured on these models: at most 6e-7."""


def gpt2() -> Any:
    config = transformers.GPT2Config(
        n_layer=2, n_embd=32, n_head=4, vocab_size=100, n_positions=64, use_cache=False
    )
    return transformers.GPT2LMHeadModel(config).eval()


def whisper_encoder() -> Any:
    from transformers.models.whisper.modeling_whisper import WhisperEncoder

    config = transformers.WhisperConfig(
        d_model=32, encoder_layers=2, encoder_attention_heads=4, encoder_ffn_dim=64,
        num_mel_bins=16, max_source_positions=50,
    )  # fmt: skip
    return WhisperEncoder(config).eval()


def compiled(model: torch.nn.Module, folder: Path, inputs: dict[str, Any], dynamic: Any) -> Any:
    factory = {"GPT2LMHeadModel": gpt2, "WhisperEncoder": whisper_encoder}[type(model).__name__]
    program = fe.export(factory, (), inputs, dynamic_shapes=dynamic)
    compile_onnx(program, folder / "m.onnx")
    return open_onnx(folder / "m.onnx", checkpoint=dict(model.state_dict()))


@pytest.mark.slow
def test_gpt2_with_dynamic_sizes_and_padding(tmp_path: Path) -> None:
    model = gpt2()
    sizes = {0: Dim("batch", max=16), 1: Dim("sequence", max=32)}
    example = torch.zeros(2, 8, dtype=torch.int64)
    ids = torch.randint(0, 100, (3, 11))
    mask = torch.ones_like(ids)
    mask[1, :4] = 0

    artifact = compiled(
        model,
        tmp_path,
        {"input_ids": example, "attention_mask": example + 1},
        {"input_ids": sizes, "attention_mask": sizes},
    )
    found = artifact({"input_ids": ids, "attention_mask": mask})

    with torch.no_grad():
        expected = model(input_ids=ids, attention_mask=mask).logits
    torch.testing.assert_close(found, {"logits": expected}, rtol=0, atol=TOLERANCE)
    with pytest.raises(UnsuitableInputs, match="at most 32"):
        artifact({"input_ids": torch.zeros(1, 33).long(), "attention_mask": torch.ones(1, 33).long()})


@pytest.mark.slow
def test_the_encoder_of_whisper(tmp_path: Path) -> None:
    model = whisper_encoder()
    features = torch.randn(3, 16, 100)

    artifact = compiled(
        model, tmp_path, {"input_features": torch.zeros(2, 16, 100)}, {"input_features": {0: Dim("batch")}}
    )
    found = artifact({"input_features": features})

    with torch.no_grad():
        expected = model(features).last_hidden_state
    torch.testing.assert_close(found, {"last_hidden_state": expected}, rtol=0, atol=TOLERANCE)
