"""Real architectures whose constructors read values, or make tensors in old ways."""

import pytest
import torch

from fakexport.emulation.devices import emulate
from fakexport.emulation.fake import build, is_fake

transformers = pytest.importorskip("transformers")

SMALL = {"hidden_size": 32, "num_hidden_layers": 2, "num_attention_heads": 4, "intermediate_size": 64}
MODELS = {
    "vit": SMALL,
    "dinov2": SMALL,
    "dinov2_with_registers": SMALL,
    "vitdet": SMALL,
    "swinv2": {"embed_dim": 32, "depths": [2, 2], "num_heads": [2, 4]},
    "pvt_v2": {"depths": [1, 1, 1, 1]},
    "convnextv2": {"hidden_sizes": [8, 16, 32, 64], "depths": [1, 1, 2, 1]},
    "bit": {"hidden_sizes": [128, 256], "depths": [1, 2], "embedding_size": 64, "drop_path_rate": 0.1},
    "wav2vec2": SMALL,
    "xlnet": {"d_model": 32, "n_layer": 2, "n_head": 4, "d_inner": 64, "vocab_size": 99},
    "whisper": {"d_model": 24, "encoder_layers": 1, "decoder_layers": 1, "decoder_attention_heads": 6},
    "clip_vision_model": SMALL,
    "llama": SMALL | {"vocab_size": 99, "num_key_value_heads": 2},
    "deberta-v2": SMALL | {"vocab_size": 99},
    "segformer": {"hidden_sizes": [8, 16, 32, 32], "drop_path_rate": 0.3},
    "speech_to_text": {"d_model": 32, "encoder_layers": 1, "decoder_layers": 1, "vocab_size": 99},
}  # fmt: skip


def make(name: str) -> torch.nn.Module:
    config = transformers.AutoConfig.for_model(name, **MODELS[name])
    if name == "clip_vision_model":
        return transformers.CLIPVisionModel(config)
    return transformers.AutoModel.from_config(config)


@pytest.mark.parametrize("name", MODELS)
def test_a_model_builds_on_a_virtual_device_as_it_does_for_real(name):
    real = make(name)

    with emulate("H100"):
        built = build(lambda: make(name), device_map="cuda:0")

    tensors = dict([*built.module.named_parameters(), *built.module.named_buffers()])
    expected = dict([*real.named_parameters(), *real.named_buffers()])
    assert {n: (t.shape, t.dtype, t.stride()) for n, t in tensors.items()} == {
        n: (t.shape, t.dtype, t.stride()) for n, t in expected.items()
    }
    assert all(is_fake(t) and str(t.device) == "cuda:0" for t in tensors.values())
    assert read_rates(built.module) == read_rates(real)
    known = dict(real.named_buffers())
    if name == "whisper":  # Sinusoidal parameters.
        known["encoder.embed_positions.weight"] = real.encoder.embed_positions.weight
    for known_name, value in known.items():
        assert torch.equal(built.recording.constant_value(tensors[known_name]), value), known_name


def read_rates(module: torch.nn.Module) -> list[object]:
    """Numbers that the constructors got out of tensors."""
    return [getattr(m, "drop_prob", None) for m in module.modules() if hasattr(m, "drop_prob")]
