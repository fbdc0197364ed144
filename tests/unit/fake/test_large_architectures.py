"""Families with their default, full-size configurations, and some of published size."""

import pytest
import torch

from fakexport.devices import emulate
from fakexport.fake import build, is_fake

transformers = pytest.importorskip("transformers")

pytestmark = [pytest.mark.slow, pytest.mark.alone]

DEFAULTS = """
albert bart beit bert bit blip-2 bloom blt clip cohere convbert convnextv2 cvt data2vec-vision deberta-v2
deit dinov2 dinov3_vit dpt efficientnet electra falcon flava focalnet gemma3 glm4 gpt2 gpt_neox gpt_oss
granitemoe groupvit hubert internvl jamba led levit llama4 llava longformer mamba2 maskformer mixtral
mobilevitv2 modernbert moshi mpt nystromformer olmo2 opt owlv2 patchtst phi3 poolformer pvt_v2 qwen2_vl
qwen3_moe reformer regnet rwkv sam segformer siglip speecht5 squeezebert swiftformer swin swinv2 t5
timesformer unispeech univnet vilt vit_mae vitdet vits vivit wav2vec2 wav2vec2-bert wavlm whisper xlm
xlnet yolos zamba2
"""


@pytest.mark.parametrize("name", DEFAULTS.split())
def test_a_family_builds(name):
    config = transformers.AutoConfig.for_model(name)

    with emulate("H100"):
        built = build(lambda: transformers.AutoModel.from_config(config), device_map="cuda:0")

    tensors = [*built.module.parameters(), *built.module.buffers()]
    assert tensors
    assert all(is_fake(t) and str(t.device) == "cuda:0" for t in tensors)


def test_llama_405b_over_eight_devices_has_seven_boundaries():
    config = transformers.LlamaConfig(
        hidden_size=16384, intermediate_size=53248, num_hidden_layers=126, num_attention_heads=128,
        num_key_value_heads=8, vocab_size=128256,
    )  # fmt: skip

    with emulate("8xH100"):
        built = build(
            lambda: transformers.LlamaForCausalLM(config), device_map="balanced", dtype=torch.bfloat16
        )

    path = ["model.embed_tokens", *(f"model.layers.{i}" for i in range(126)), "model.norm", "lm_head"]
    devices = [built.placement.device_of(part) for part in path]
    assert devices == sorted(devices)
    assert len(set(devices)) == 8
    assert built.placement.device_of("model.rotary_emb") == "cuda:0"
    assert sum(p.numel() for p in built.module.parameters()) > 405e9
