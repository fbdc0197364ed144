"""Training of small models of transformers on the CPU: what is planned, next to what real runs hold."""

from __future__ import annotations

import functools
from typing import Any

import pytest
import torch
import transformers
from torch import nn

from fakexport.emulation.devices import emulate
from fakexport.emulation.fake import build
from fakexport.planning.memory import eager_liveness, sizes_at, training_liveness
from fakexport.planning.memory.training import OPTIMIZERS, loss_of
from tests.measured_memory import measured_peak, measured_training

SIZES = {"num_hidden_layers": 2, "num_attention_heads": 4, "hidden_size": 64, "intermediate_size": 128}
BATCH, TOKENS, VOCABULARY = 4, 48, 512

MODELS: dict[str, Any] = {
    "llama": (
        transformers.LlamaForCausalLM,
        transformers.LlamaConfig(num_key_value_heads=2, vocab_size=VOCABULARY, use_cache=False, **SIZES),
    ),
    "gpt2": (
        transformers.GPT2LMHeadModel,
        transformers.GPT2Config(n_embd=64, n_layer=2, n_head=4, vocab_size=VOCABULARY, use_cache=False),
    ),
    "bert": (transformers.BertForMaskedLM, transformers.BertConfig(vocab_size=VOCABULARY, **SIZES)),
    "t5": (
        transformers.T5ForConditionalGeneration,
        transformers.T5Config(
            d_model=64, d_kv=16, d_ff=128, num_layers=2, num_heads=4, vocab_size=VOCABULARY, use_cache=False,
            decoder_start_token_id=0,
        ),
    ),
}  # fmt: skip
RANDOM_STATE_BYTES = torch.get_rng_state().numel()


def _model(name: str, *, is_checkpointed: bool) -> nn.Module:
    of, config = MODELS[name]
    torch.manual_seed(0)
    model: Any = of(config).train()
    if is_checkpointed:
        model.activation_checkpointing_enable()
    return model  # type: ignore[no-any-return]


def _inputs() -> dict[str, torch.Tensor]:
    ids = torch.zeros(BATCH, TOKENS, dtype=torch.long)
    mask = torch.ones_like(ids)
    mask[:, :3] = 0  # One that hides nothing is dropped by real models, after a look at its values.
    return {"input_ids": ids, "attention_mask": mask, "labels": ids.clone()}


@pytest.mark.slow
@pytest.mark.parametrize(
    ("name", "is_checkpointed", "optimizer"),
    [
        ("llama", False, "sgd"),
        *((name, is_checkpointed, "adamw") for name in MODELS for is_checkpointed in (False, True)),
    ],
)
def test_training_is_planned_as_it_runs(name: str, is_checkpointed: bool, optimizer: Any) -> None:
    with emulate("cpu"):
        built = build(lambda: (_model(name, is_checkpointed=is_checkpointed), (), _inputs()))
        built.module.train()
        found = training_liveness(built, (), built.kwargs, optimizer=optimizer)
    predicted = sizes_at(found, {}).peak("cpu").run_bytes

    module, inputs = _model(name, is_checkpointed=is_checkpointed), _inputs()

    def step(own: torch.optim.Optimizer) -> None:
        own.zero_grad()
        loss_of(module(**inputs)).backward()
        own.step()

    measured = measured_training(
        module, step, functools.partial(OPTIMIZERS[optimizer], list(module.parameters()))
    )
    if is_checkpointed:  # Copies of the generator's state, which are not tensors of the model.
        assert 0 <= measured - predicted <= 4 * RANDOM_STATE_BYTES + 128
    else:
        assert abs(predicted - measured) <= 128


@pytest.mark.slow
@pytest.mark.parametrize("name", MODELS)
def test_eager_mode_is_planned_as_it_runs(name: str) -> None:
    with emulate("cpu"):
        built = build(lambda: (_model(name, is_checkpointed=False).eval(), (), _inputs()))
        found = eager_liveness(built, (), built.kwargs)

    module, inputs = _model(name, is_checkpointed=False).eval(), _inputs()
    assert abs(sizes_at(found, {}).peak("cpu").run_bytes - measured_peak(lambda: module(**inputs))) <= 128
