"""The cache that a plan counts is, to the byte, the memory of the cache of a real small model."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import torch
import transformers
from torch import nn

import fakexport as fe
from fakexport.models.sources.transformers import decode_inputs
from tests.architectures.architecture import Architecture

BATCH, CONTEXT = 3, 40
# Full attention, grouped heads, windows in every other layer, latent attention, state spaces, hybrids.
COMMON = ("llama", "gemma3_text", "deepseek_v3", "mamba2", "bamba")
# Experts decode in bfloat16 only (`_grouped_mm`), and hybrids whose small model has no attention layer do not
# run in transformers: they are not here.
MORE = """
    apertus arcee bitnet bloom codegen cohere cohere2 doge ernie4_5 exaone4 falcon falcon_h1 falcon_mamba
    gemma gemma2 glm glm4 gpt2 gpt_bigcode gpt_neo gpt_neox gptj granite helium lfm2 mamba ministral mistral
    nemotron olmo olmo2 olmo3 opt phi phi3 qwen2 qwen3 seed_oss smollm3 stablelm starcoder2 zamba zamba2
"""


@pytest.mark.parametrize(
    "model_type",
    [*(pytest.param(name, marks=pytest.mark.slow) for name in COMMON)]
    + [pytest.param(name, marks=pytest.mark.exhaustive) for name in MORE.split()],
)
def test_the_state_is_that_of_a_real_cache(model_type: str, tmp_path: Path) -> None:
    architecture = Architecture(model_type, "AutoModelForCausalLM", is_common=False)
    source = _with_cache(architecture.source(tmp_path))

    planned = [_state(source, workload) for workload in ("prefill", "decode")]

    model = architecture.build().eval()
    assert planned == [_real(model, CONTEXT, steps) for steps in (0, 1)]


# Layers of different kinds in one model, at contexts within the windows, at their length, and beyond.
MIXED: dict[str, dict[str, Any]] = {
    "mistral": {"sliding_window": 16},
    "gemma3_text": {"layer_types": ["sliding_attention", "full_attention"], "sliding_window": 16},
    "qwen3_next": {"layer_types": ["linear_attention", "full_attention"], "dtype": "bfloat16"},
    "deepseek_v4": {
        "layer_types": [
            "sliding_attention",
            "compressed_sparse_attention",
            "heavily_compressed_attention",
        ],
        "mlp_layer_types": ["hash_moe", "moe", "moe"],
        "num_hidden_layers": 3,
        "sliding_window": 16,
        "dtype": "bfloat16",
    },
}
CONTEXTS = {"mistral": (12, 16, 17, 200), "deepseek_v4": (12, 130)}


@pytest.mark.slow
@pytest.mark.parametrize("model_type", MIXED)
def test_each_layer_caches_as_much_as_in_a_real_run_for_every_context(
    model_type: str, tmp_path: Path
) -> None:
    source, model = _changed(model_type, MIXED[model_type], tmp_path)
    contexts = CONTEXTS.get(model_type, (12, 200))

    planned = [_state(source, "decode", context) for context in contexts]

    assert planned == [_real(model, context, 1) for context in contexts]


def _changed(model_type: str, changes: dict[str, Any], folder: Path) -> tuple[str, nn.Module]:
    source = _with_cache(Architecture(model_type, "AutoModelForCausalLM", is_common=False).source(folder))
    path = Path(source.split(":")[1])
    path.write_text(json.dumps({**json.loads(path.read_text()), **changes}))
    config = transformers.AutoConfig.from_pretrained(path)
    model = transformers.AutoModelForCausalLM.from_config(config, dtype=changes.get("dtype"))
    model.save_pretrained(folder / "saved")  # Loading it keeps some weights in float32, as for a user.
    return source, transformers.AutoModelForCausalLM.from_pretrained(folder / "saved").eval()


@pytest.mark.slow
def test_a_model_that_loops_over_tokens_is_planned_for_any_context(tmp_path: Path) -> None:
    """A run of a million tokens would take hours."""
    source, model = _changed("mamba", {}, tmp_path)

    planned = [_state(source, "decode", context) for context in (40, 2**20)]

    assert planned == [_real(model, 40, 1)] * 2
    assert torch.is_grad_enabled()


@pytest.mark.slow
def test_a_loop_over_tokens_needs_sizes_that_are_constant_or_the_tokens(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(decode_inputs, "_LOOPED", 0)  # Any long prompt is a loop.
    source, model = _changed("gemma3_text", MIXED["gemma3_text"], tmp_path)

    assert _state(source, "decode", 300) == _real(model, 300, 1)

    source, _ = _changed("deepseek_v4", MIXED["deepseek_v4"], tmp_path)
    with pytest.raises(ValueError, match=r"unknown: past_key_values_\d+.1 is 19 after 79 tokens"):
        fe.plan(source, target="cpu", context=300, workload="decode")


@pytest.mark.slow
@pytest.mark.parametrize("context", [12, 16, 40])
def test_the_largest_context_counts_a_window_once(context: int, tmp_path: Path) -> None:
    """A program for a context within the window does not show it, and that of the window has a fixed mask."""
    source, model = _changed("mistral", MIXED["mistral"], tmp_path)

    found = fe.plan(
        source, target="RTX-4090", batch=1, context=context, workload="decode", maximum=["context"]
    )

    cache = _cache(model(input_ids=torch.ones(1, 8, dtype=torch.long), use_cache=True))
    per_token = sum(tensor.nbytes for tensor in _tensors(cache, set()) if tensor.dim()) // 8
    assert (found.greatest[0].size or 0) * per_token > 24 * 2**30, "keys and values of all tokens do not fit"


def _with_cache(source: str) -> str:
    path = Path(source.split(":")[1])
    settings = json.loads(path.read_text())
    path.write_text(json.dumps({**settings, "use_cache": True}))
    return source


def _state(source: str, workload: Any, context: int = CONTEXT) -> int:
    report = fe.plan(source, target="cpu", batch=BATCH, context=context, workload=workload)
    return sum(device.state_after for device in report.points[0].devices)


def _real(model: nn.Module, context: int, steps: int) -> int:
    """Return the bytes of the cache of a real model that has read a context, the last tokens one by one."""
    ids = torch.ones(BATCH, context, dtype=torch.long)
    with torch.no_grad():
        cache = _cache(model(input_ids=ids[:, : context - steps], use_cache=True))
        for _ in range(steps):
            name = "past_key_values" if not hasattr(cache, "conv_states") else "cache_params"
            mask = torch.ones(BATCH, context, dtype=torch.long)
            cache = _cache(model(input_ids=ids[:, :1], attention_mask=mask, use_cache=True, **{name: cache}))
    memory = {tensor.untyped_storage()._cdata: tensor for tensor in _tensors(cache, set())}
    return sum(tensor.untyped_storage().nbytes() for tensor in memory.values())


def _cache(returned: Any) -> Any:
    cache = getattr(returned, "past_key_values", None)
    return returned.cache_params if cache is None else cache


def _tensors(value: Any, seen: set[int]) -> Iterator[torch.Tensor]:
    """Yield the tensors that an object holds, wherever they are in it."""
    if isinstance(value, torch.Tensor):
        yield value
    elif isinstance(value, (list, tuple)):
        for item in value:
            yield from _tensors(item, seen)
    elif isinstance(value, dict):
        yield from _tensors(list(value.values()), seen)
    elif hasattr(value, "__dict__") and id(value) not in seen:
        seen.add(id(value))
        yield from _tensors(vars(value), seen)


@pytest.mark.slow
@pytest.mark.parametrize("model_type", ["qwen3_vl", "gemma3", "llava"])
def test_a_model_that_also_reads_images_is_planned_with_text_alone(model_type: str, tmp_path: Path) -> None:
    architecture = Architecture(model_type, "AutoModelForImageTextToText", is_common=False)
    source = _with_cache(architecture.source(tmp_path))

    planned = _state(source, "decode")

    assert planned == _real(architecture.build().eval(), CONTEXT, 1)


@pytest.mark.parametrize("model_type", ["t5", "bart"])
def test_a_model_with_an_encoder_has_no_planned_decode_step(model_type: str, tmp_path: Path) -> None:
    """bart would read the token as a prompt for its encoder."""
    architecture = Architecture(model_type, "AutoModelForSeq2SeqLM", is_common=False)

    with pytest.raises(ValueError, match="does not read a prompt of text alone"):
        fe.plan(architecture.source(tmp_path), target="cpu", workload="decode")


@pytest.mark.parametrize(
    "options", [{}, {"max_cache_len": 32}, {"max_cache_len": 32, "cache_form": "buffers"}]
)
def test_a_cache_that_also_depends_on_images_has_no_decode_step(
    options: dict[str, Any], tmp_path: Path
) -> None:
    """Its cross-attention caches nothing for a prompt of text alone, so the cache would be too small."""
    source = Architecture("mllama", "AutoModelForImageTextToText", is_common=False).source(tmp_path)

    with pytest.raises(ValueError, match=r"caches less without .*pixel_values") as exported:
        fe.export(source, workload="decode", **options)
    with pytest.raises(ValueError, match=r"caches less without .*pixel_values") as planned:
        fe.plan(source, target="cpu", workload="decode")

    assert str(exported.value) == str(planned.value)
