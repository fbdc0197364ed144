"""What `transformers.exporters` puts instead of attention over images computes what eager computes."""

from __future__ import annotations

import importlib
import inspect
from typing import Any

import pytest
import torch
from torch import nn

pytest.importorskip("transformers")

from fakexport.models.sources.transformers.exporter_patches import normalized_heads

FAST = ("GlmOcrVisionAttention", "Dots3NoteVisionAttention", "Qwen2_5_VLVisionAttention")
SEQUENCE = 16


def replaced_classes() -> list[Any]:
    """The classes by the text of transformers: importing the model files takes seconds."""
    text = inspect.getsource(importlib.import_module("transformers.exporters.exporter_dynamo"))
    before = text[: text.index("def _patch_chunked_vision_attention")]
    entries = before[before.rindex("@register_patch") :].split('"')[1::2]
    paths = [entry.removesuffix(".forward") for entry in entries if entry.endswith(".forward")]
    return [
        pytest.param(path, id=name, marks=() if name in FAST else pytest.mark.slow)
        for path in paths
        for name in [path.rpartition(".")[2]]
    ]


def attention_of(path: str) -> Any:
    module_name, _, name = path.rpartition(".")
    module = importlib.import_module(module_name)
    cls = getattr(module, name)
    parameters = inspect.signature(cls).parameters
    config = _config_class(module, parameters)()
    config._attn_implementation = "sdpa"
    torch.manual_seed(0)
    made = cls(config, **({"layer_idx": 0} if "layer_idx" in parameters else {})).eval()
    with torch.no_grad():
        for parameter in made.parameters():
            parameter.normal_(0, 0.3)
    return made


def _config_class(module: Any, parameters: Any) -> Any:
    annotation = parameters["config"].annotation
    if annotation is not inspect.Parameter.empty:
        return getattr(module, annotation) if isinstance(annotation, str) else annotation
    endings = ("VisionConfig", "EncoderConfig", "AudioConfig")
    return next(vars(module)[name] for name in vars(module) if name.endswith(endings))


def inputs_of(attention: nn.Module) -> dict[str, Any]:
    size = next(
        getattr(attention, name).in_features for name in ("qkv", "q", "q_proj") if hasattr(attention, name)
    )
    head = getattr(attention, "head_dim", size // attention.num_heads)
    inputs = {
        "hidden_states": torch.randn(SEQUENCE, size),
        "cu_seqlens": torch.tensor([0, SEQUENCE // 2, SEQUENCE], dtype=torch.int32),
    }
    if "minicpm" in type(attention).__module__:
        inputs["hidden_states"] = inputs["hidden_states"].unsqueeze(0)
    names = inspect.signature(type(attention).forward).parameters
    if "max_seqlen" in names:
        inputs["max_seqlen"] = SEQUENCE // 2
    if "rotary_pos_emb" in names and "position_embeddings" not in names:
        return {**inputs, "rotary_pos_emb": torch.randn(SEQUENCE, head // 2)}
    if "Audio" in type(attention).__name__ or "minicpm" in type(attention).__module__:
        return inputs
    return {**inputs, "position_embeddings": (torch.randn(SEQUENCE, head), torch.randn(SEQUENCE, head))}


def values_of(attention: nn.Module, inputs: dict[str, Any]) -> torch.Tensor:
    with torch.no_grad():
        outputs = attention(**inputs)
    return outputs[0] if isinstance(outputs, tuple) else outputs


@pytest.mark.parametrize("path", replaced_classes())
def test_replaced_attention_gives_the_values_of_eager(path):
    from transformers.exporters.exporter_dynamo import apply_patches

    attention = attention_of(path)
    inputs = inputs_of(attention)
    expected = values_of(attention, inputs)
    original = type(attention).forward

    with apply_patches("dynamo"), normalized_heads(attention):
        assert type(attention).forward is not original
        got = values_of(attention, inputs)

    torch.testing.assert_close(got, expected, rtol=1e-3, atol=1e-4 * expected.abs().max().item())


def test_nothing_stays_on_the_model():
    from transformers.exporters.exporter_dynamo import apply_patches

    attention = attention_of("transformers.models.glm_ocr.modeling_glm_ocr.GlmOcrVisionAttention")

    with apply_patches("dynamo"), normalized_heads(attention):
        assert len(attention.qkv._forward_hooks) == 1

    assert not attention.qkv._forward_hooks
