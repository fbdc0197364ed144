"""The models in `examples` are what they say."""

import runpy
from pathlib import Path

import pytest
import torch

from fakexport.models.sources import resolve

EXAMPLES = Path(__file__).parents[4] / "examples"


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


# By default a small one of the same shape; in CI also that of the seed.
@pytest.mark.parametrize(
    "sizes",
    [{"layers": 2, "width": 48, "heads": 4}, pytest.param({}, marks=pytest.mark.slow)],
    ids=["small", "base"],
)
def test_the_halves_of_the_captioner_fit_together(sizes):
    halves = runpy.run_path(str(EXAMPLES / "captioning.py"))
    with torch.device("meta"):
        encoder, (image,) = halves["encoder"](**sizes)
    decoder, (input_ids, states) = halves["decoder"](**sizes)

    with torch.no_grad():
        logits = decoder(input_ids, states)

    assert image.shape == (4, 3, 224, 224)
    assert encoder(image).last_hidden_state.shape == states.shape == (4, 197, sizes.get("width", 768))
    assert (input_ids.shape, input_ids.dtype) == ((4, 256), torch.int64)
    assert logits.shape == (4, 256, 1024)
