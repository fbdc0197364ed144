"""Tensors that plain Python objects hold, and that `forward` writes into: how a static cache works.

The oracle is `torch.export` of the real module, and eager's values.
"""

from __future__ import annotations

import pytest
import torch
from torch import nn
from transformers import GenerationConfig, LlamaConfig, LlamaForCausalLM
from transformers.integrations.executorch import TorchExportableModuleWithStaticCache

import fakexport as fe


class Cache:
    def __init__(self) -> None:
        self.keys = torch.zeros(3, 4)


class Cached(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.linear, self.cache = nn.Linear(4, 4), Cache()

    def forward(self, x):
        self.cache.keys.copy_(x)
        return self.linear(self.cache.keys)


def test_a_write_into_a_plain_object_gives_the_program_of_the_real_module():
    real = torch.export.export(Cached(), (torch.ones(3, 4),))

    on_cpu = fe.export(Cached, (torch.ones(3, 4),), target="cpu")
    on_gpu = fe.export(Cached, (torch.ones(3, 4),), target="H100")

    assert str(on_cpu.graph) == str(on_gpu.graph) == str(real.graph)
    assert on_cpu.graph_signature == real.graph_signature
    assert on_gpu.constants["lifted_tensor_0"].device == torch.device("cuda:0")


def decoder():
    torch.manual_seed(0)
    config = LlamaConfig(
        hidden_size=32,
        intermediate_size=64,
        num_hidden_layers=2,
        num_attention_heads=4,
        num_key_value_heads=2,
        vocab_size=128,
        max_position_embeddings=64,
    )
    model = LlamaForCausalLM(config).eval()
    model.generation_config = GenerationConfig(
        use_cache=True,
        cache_implementation="static",
        max_length=16,
        cache_config={"batch_size": 1, "max_cache_len": 16, "device": None},
    )
    return TorchExportableModuleWithStaticCache(model)


def step(token, position):
    return {"input_ids": torch.tensor([[token]]), "cache_position": torch.tensor([position])}


@pytest.mark.slow
def test_a_decode_step_with_a_static_cache_gives_the_program_and_values_of_the_real_module():
    eager = decoder()
    real = torch.export.export(decoder(), (), step(0, 0), strict=False)

    program = fe.export(lambda: (decoder(), (), step(0, 0)), target="cpu")

    # Torch takes the cache, which is also a buffer, for a constant.
    assert called(program) == called(real)
    assert not program.graph_signature.lifted_tensor_constants
    assert real.graph_signature.lifted_tensor_constants
    running = fe.bind(program, dict(eager.state_dict())).module()
    for position, token in enumerate([5, 7, 7]):
        assert torch.equal(running(**step(token, position)), eager(**step(token, position)))


def called(program):
    return [(node.name, str(node.target)) for node in program.graph.nodes if node.op == "call_function"]


@pytest.mark.slow
def test_a_decode_step_exports_for_a_gpu():
    report = fe.check(lambda: (decoder(), (), step(0, 0)), target=["cpu", "H100"])

    assert [verdict.is_exportable for verdict in report.verdicts] == [True, True]
    assert not [found for found in report.diagnostics if found.severity == "error"]
