"""Programs that several tests read; none of them may change one."""

from __future__ import annotations

import pytest
import torch
from torch.export import Dim, ExportedProgram
from transformers import GPT2Config, GPT2LMHeadModel, LlamaConfig, LlamaForCausalLM

from tests.unit.exporting.program.small_models import (
    BATCH,
    Branching,
    TwoDevices,
    export_for,
    export_many_kinds,
)


@pytest.fixture(scope="session")
def many_kinds() -> ExportedProgram:
    return export_many_kinds()


@pytest.fixture(scope="session")
def branching() -> ExportedProgram:
    return torch.export.export(Branching(), (torch.randn(3, 4),))


@pytest.fixture(scope="session")
def two_devices() -> ExportedProgram:
    def make() -> tuple[TwoDevices, tuple[torch.Tensor]]:
        return TwoDevices(), (torch.randn(3, 8, device="cuda:0"),)

    return export_for("cpu+2xH100", make, dynamic_shapes=BATCH)


@pytest.fixture(scope="session")
def llama_model() -> LlamaForCausalLM:
    config = LlamaConfig(
        hidden_size=32,
        intermediate_size=48,
        num_hidden_layers=3,
        num_attention_heads=4,
        num_key_value_heads=2,
        vocab_size=64,
        use_cache=False,
    )
    return LlamaForCausalLM(config).eval()


@pytest.fixture(scope="session")
def llama(llama_model: LlamaForCausalLM) -> ExportedProgram:
    sizes = {"input_ids": {0: Dim.AUTO, 1: Dim.AUTO}}
    return torch.export.export(llama_model, (torch.zeros(2, 8, dtype=torch.long),), dynamic_shapes=sizes)


@pytest.fixture(scope="session")
def gpt2_model() -> GPT2LMHeadModel:
    config = GPT2Config(
        n_embd=32, n_layer=2, n_head=2, vocab_size=64, bos_token_id=0, eos_token_id=0, use_cache=False
    )
    return GPT2LMHeadModel(config).eval()


@pytest.fixture(scope="session")
def gpt2(gpt2_model: GPT2LMHeadModel) -> ExportedProgram:
    sizes = {"input_ids": {0: Dim.AUTO, 1: Dim.AUTO}}
    inputs = {"input_ids": torch.zeros(2, 8, dtype=torch.long)}
    return torch.export.export(gpt2_model, (), inputs, dynamic_shapes=sizes)
