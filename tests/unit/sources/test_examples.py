"""The models in `examples` are what they say."""

from pathlib import Path

import pytest
import torch

from fakexport.sources import resolve

EXAMPLES = Path(__file__).parents[3] / "examples"


@pytest.mark.parametrize("factory", ["cpu", "factory"])
def test_the_mlp_runs(factory):
    module, (x,) = resolve(f"{EXAMPLES}/mlp.py:{factory}").factory()

    assert module(x).shape == (4, 10)
    assert (module.fc1.weight.shape, module.fc2.weight.shape) == ((256, 128), (10, 256))


def test_the_mlp_leaves_its_place_to_the_caller():
    with torch.device("meta"):
        module, (x,) = resolve(f"{EXAMPLES}/mlp.py:factory").factory()

    assert x.is_meta
    assert all(parameter.is_meta for parameter in module.parameters())


def test_the_halves_of_the_captioner_fit_together():
    with torch.device("meta"):
        encoder, (image,) = resolve(f"{EXAMPLES}/captioning.py:encoder").factory()
        decoder, (input_ids, states) = resolve(f"{EXAMPLES}/captioning.py:decoder").factory()
        logits = decoder(input_ids, states)

    assert image.shape == (4, 3, 224, 224)
    assert encoder(image).last_hidden_state.shape == states.shape == (4, 197, 768)
    assert (input_ids.shape, input_ids.dtype) == ((4, 256), torch.int64)
    assert logits.shape == (4, 256, 1024)
