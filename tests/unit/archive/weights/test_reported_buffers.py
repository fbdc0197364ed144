"""Threads in which buffers that no checkpoint contains were left as memory was: each is found and repaired.

What a thread needs several GPUs for is done in one process, in the order in which the thread does it.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import accelerate
import pytest
import torch
import transformers
from torch import nn
from torch.utils import deterministic

from fakexport import verify_buffers

SIZES = {
    "hidden_size": 32,
    "intermediate_size": 48,
    "num_hidden_layers": 2,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "vocab_size": 32,
    "max_position_embeddings": 32,
    "head_dim": 8,
}
FREQUENCIES = ("rotary_emb.inv_freq", "rotary_emb.original_inv_freq")
IDS = torch.arange(8)[None]


@pytest.fixture(autouse=True)
def uninitialized_memory_is_never_right_by_chance() -> Iterator[None]:
    """torch fills it with NaN in this mode."""
    torch.use_deterministic_algorithms(True)
    assert deterministic.fill_uninitialized_memory
    try:
        yield
    finally:
        torch.use_deterministic_algorithms(False)


def model_of(name: str, **settings: Any) -> Any:
    torch.manual_seed(0)
    model_class = getattr(transformers, name)
    return model_class(model_class.config_class(**SIZES, **settings)).eval()


def on_meta(right: Any) -> Any:
    with torch.device("meta"):
        return type(right)(right.config).eval()


class TableConfig(transformers.PretrainedConfig):
    model_type = "table"


class TableModel(transformers.PreTrainedModel):
    """A class whose `_init_weights` knows nothing of its buffer, as those of users do."""

    config_class = TableConfig

    def __init__(self, config: TableConfig) -> None:
        super().__init__(config)
        self.linear = nn.Linear(8, 8)
        self.register_buffer("table", torch.linspace(0, 1, 8), persistent=False)
        self.post_init()

    def forward(self, ids: torch.Tensor) -> Any:
        return transformers.modeling_outputs.CausalLMOutput(logits=self.linear(ids * self.table))


def from_pretrained(folder: Path) -> tuple[Any, Any]:
    """transformers#48892: `from_pretrained` gives a buffer memory, and nothing fills it."""
    right = TableModel(TableConfig()).eval()
    right.save_pretrained(folder)
    return TableModel.from_pretrained(folder).eval(), right


def to_empty_of_experts(folder: Path) -> tuple[Any, Any]:
    """transformers#45902: a Qwen3.5 with experts on the meta device, `to_empty`, then its weights."""
    right = model_of(
        "Qwen3_5MoeForCausalLM",
        layer_types=["linear_attention", "full_attention"],
        num_experts=4,
        num_experts_per_tok=2,
        moe_intermediate_size=16,
        shared_expert_intermediate_size=16,
        linear_key_head_dim=8,
        linear_value_head_dim=8,
        linear_num_key_heads=2,
        linear_num_value_heads=4,
    )
    model = on_meta(right).to_empty(device="cpu")
    model.load_state_dict(right.state_dict())
    return model, right


def dispatched(folder: Path) -> tuple[Any, Any]:
    """transformers#34234: accelerate empties a model, and loads a checkpoint into it."""
    right = model_of("LlamaForCausalLM")
    right.save_pretrained(folder)
    with accelerate.init_empty_weights():
        model = type(right)(right.config).eval()
    model.to_empty(device="cpu")
    return accelerate.load_checkpoint_and_dispatch(model, folder), right


def init_states(folder: Path) -> tuple[Any, Any]:
    """torchtitan#4783: a loop that computes frequencies by a function that rotary modules no longer have."""
    right = model_of("Qwen3ForCausalLM")
    model = on_meta(right).to_empty(device="cpu")
    for module in model.modules():
        if (function := getattr(module, "rope_init_fn", None)) is not None:
            module.inv_freq.copy_(function(model.config, "cpu")[0])
    model.load_state_dict(right.state_dict())
    return model, right


def broadcast_bytes(folder: Path) -> tuple[Any, Any]:
    """SkyRL#1709: float32 bytes of the first rank, received by ranks that are in bfloat16 as a whole."""
    first, model, right = (model_of("Qwen3ForCausalLM") for _ in range(3))
    for name in FREQUENCIES:
        sent, received = first.model.get_buffer(name), model.bfloat16().model.get_buffer(name)
        received.copy_(sent.view(torch.bfloat16)[: len(sent)])
    return model, right.bfloat16()


def init_on_rank0(folder: Path) -> tuple[Any, Any]:
    """LlamaFactory#10820: a model that was loaded already, `to_empty`, and its state dict once more."""
    right = model_of("Qwen3ForCausalLM")
    model = model_of("Qwen3ForCausalLM").to_empty(device="cpu")
    model.load_state_dict(right.state_dict())
    return model, right


@pytest.mark.slow
@pytest.mark.parametrize(
    "thread",
    [from_pretrained, to_empty_of_experts, dispatched, init_states, broadcast_bytes, init_on_rank0],
)
def test_what_a_thread_reports_is_found_and_repaired(
    thread: Callable[[Path], tuple[Any, Any]], tmp_path: Path
) -> None:
    model, right = thread(tmp_path)
    names = ("table",) if isinstance(right, TableModel) else tuple(f"model.{name}" for name in FREQUENCIES)
    with torch.no_grad():
        expected = right(IDS).logits
        assert not torch.equal(model(IDS).logits, expected), "the thread is not reproduced"

        found = {wrong.name for wrong in verify_buffers(model).wrong}
        repaired = verify_buffers(model, repair=True).is_repaired

        assert found == set(names)
        assert repaired
        assert torch.equal(model(IDS).logits, expected)
    assert verify_buffers(right).is_right
