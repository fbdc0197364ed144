"""The constants of real architectures are those of a real export, bit for bit."""

from __future__ import annotations

from collections.abc import Iterator

import pytest
import torch

from tests.real_constants import compare_constants, tiny_source
from tests.unit.models.sources.tiny_configs import ENCODER, IMAGE, TINY

pytest.importorskip("transformers")

GPT = {"vocab_size": 64, "n_embd": 32, "n_layer": 1, "n_head": 4, "n_positions": 32}
# Model type -> config, and how many constants its program has.
MODELS = {
    "llama": (TINY["llama"][0], 2),  # rotary frequencies
    "bert": (TINY["bert"][0], 2),  # position and token type ids
    "clip": (TINY["clip"][0], 2),
    "swin": (TINY["swin"][0], 1),  # relative position index
    "videomae": (TINY["videomae"][0], 1),  # sinusoids, a plain attribute
    "speech_to_text": (TINY["speech_to_text"][0], 2),
    "llama4": (TINY["llama4"][0], 3),
    "beit": ({**IMAGE, "use_relative_position_bias": True}, 6),
    "falcon": (ENCODER, 6),  # literals in `forward`
    "openai-gpt": (GPT, 2),  # causal mask
}


@pytest.fixture(autouse=True)
def no_seed() -> Iterator[None]:
    """Nobody chose a seed, whichever test ran before."""
    with torch.random.fork_rng(devices=[]):
        torch.seed()
        yield


IN_EVERY_RUN = ("llama", "swin")  # Computed, a table.


SLOWLY = [(name, "H100") for name in MODELS if name not in IN_EVERY_RUN]


@pytest.mark.parametrize(
    ("model_type", "topology"),
    [
        *((name, "H100") for name in IN_EVERY_RUN),
        *(pytest.param(*case, marks=pytest.mark.slow) for case in [("llama", "cpu"), *SLOWLY]),
    ],
)
def test_the_constants_are_those_of_a_real_export(model_type, topology, tmp_path):
    config, count = MODELS[model_type]

    comparison = compare_constants(tiny_source(model_type, config, tmp_path), topology=topology)

    assert comparison.different == {}
    assert (comparison.only_real, comparison.only_fake, comparison.unbound) == ((), (), ())
    assert len(comparison.equal) == count
