"""A language model in two programs: one reads the prompt, one writes a token at a time from the cache."""

from __future__ import annotations

import pytest
import torch
from safetensors.torch import save_file
from torch import nn
from transformers import DynamicCache, LlamaConfig, LlamaForCausalLM

import fakexport as fe

PROMPT = torch.tensor([[5, 9, 2, 7, 1]])
NEW_TOKENS = 12
PREFIXES = {"prefill": ("", "model."), "decode": ("", "model.")}


def llama() -> LlamaForCausalLM:
    sizes = {"hidden_size": 32, "intermediate_size": 64, "num_hidden_layers": 2, "num_attention_heads": 4}
    return LlamaForCausalLM(LlamaConfig(vocab_size=64, attn_implementation="eager", **sizes)).eval()


def _cache(outputs):
    layers = outputs.past_key_values.layers
    return [layer.keys for layer in layers], [layer.values for layer in layers]


class Prefill(nn.Module):
    def __init__(self, model):
        super().__init__()
        self.model = model

    def forward(self, input_ids):
        outputs = self.model(input_ids, past_key_values=DynamicCache(), use_cache=True)
        return outputs.logits[:, -1], *_cache(outputs)


class Decode(Prefill):
    def forward(self, input_ids, keys, values):
        cache = DynamicCache()
        for layer, pair in enumerate(zip(keys, values, strict=True)):
            cache.update(*pair, layer)
        outputs = self.model(input_ids, past_key_values=cache, use_cache=True)
        return outputs.logits[:, -1], *_cache(outputs)


@pytest.fixture(scope="module")
def programs():
    length, past = torch.export.Dim("length", min=2, max=64), torch.export.Dim("past", min=2, max=64)
    cache, grows = [torch.zeros(1, 4, 7, 8), torch.zeros(1, 4, 7, 8)], [{2: past}, {2: past}]
    return {
        "prefill": fe.export(lambda: Prefill(llama()), (PROMPT,), dynamic_shapes={"input_ids": {1: length}}),
        "decode": fe.export(
            lambda: Decode(llama()),
            (PROMPT[:, :1], cache, [torch.zeros_like(layer) for layer in cache]),
            dynamic_shapes={"input_ids": None, "keys": grows, "values": grows},
        ),
    }


def generated(bundle):
    prefill, decode = bundle["prefill"].module(), bundle["decode"].module()
    ids = PROMPT
    with torch.no_grad():
        logits, keys, values = prefill(ids)
        while ids.shape[1] < PROMPT.shape[1] + NEW_TOKENS:
            ids = torch.cat([ids, logits.argmax(dim=-1, keepdim=True)], dim=1)
            logits, keys, values = decode(ids[:, -1:], keys, values)
    return ids


@pytest.mark.slow
def test_prefill_and_decode_write_what_generate_writes_from_weights_that_are_there_once(programs, tmp_path):
    torch.manual_seed(0)
    model = llama()
    with torch.no_grad():
        for parameter in model.parameters():
            parameter.mul_(4)  # Else an untrained model repeats one token.
    save_file(model.state_dict(), tmp_path / "model.safetensors")
    weights = sum(parameter.nbytes for parameter in model.parameters())
    fe.save_bundle(programs, tmp_path / "llama.pt2", prefixes=PREFIXES)

    bound = fe.bind(fe.load_bundle(tmp_path / "llama.pt2"), tmp_path / "model.safetensors")
    fe.save_bundle(bound, tmp_path / "bound.pt2")
    loaded = fe.load_bundle(tmp_path / "bound.pt2")

    expected = model.generate(PROMPT, max_new_tokens=NEW_TOKENS, do_sample=False, eos_token_id=None)
    assert torch.equal(generated(loaded), expected)
    assert len(set(expected[0].tolist())) > 5
    graphs = (tmp_path / "llama.pt2").stat().st_size
    assert (tmp_path / "bound.pt2").stat().st_size < graphs + 1.1 * weights
    states = [program.state_dict for program in loaded.values()]
    memory = {tensor.data_ptr(): tensor.nbytes for state in states for tensor in state.values()}
    assert sum(memory.values()) == weights
