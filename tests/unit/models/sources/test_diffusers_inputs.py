"""Which inputs single classes of diffusers get: the shapes of their pipelines, which eager mode runs."""

from collections.abc import Mapping
from typing import Any

import pytest
import torch

from fakexport._torch.pytree import tree_map
from fakexport.models.sources import InputSpec, SourceError
from fakexport.models.sources.diffusers.diffusers_halves import half_class, half_inputs
from fakexport.models.sources.diffusers.diffusers_inputs import derive_inputs
from tests.diffusers_classes import CLASSES, HALVES

diffusers = pytest.importorskip("diffusers")
pytestmark = [
    pytest.mark.filterwarnings("ignore:`torch.nn.utils.weight_norm`"),
    pytest.mark.filterwarnings("ignore:flex_attention called without torch.compile"),
]

# Each pixel looks at its neighbors: on the CPU, flex_attention makes the scores of all pairs.
_WITH_ALL_SCORES = "LTX2VideoDiffusionDecoderModel"


@pytest.mark.parametrize("name", CLASSES)
def test_a_class_gets_what_its_pipeline_passes(name):
    module = getattr(diffusers, name).from_config(CLASSES[name]["settings"]).eval()

    inputs = derive_inputs(module, "cpu", torch.float32)

    assert told(inputs.kwargs) == CLASSES[name]["inputs"]
    torch.manual_seed(0)
    kwargs = tree_map(drawn, dict(inputs.kwargs))
    if name == _WITH_ALL_SCORES:
        kwargs["z"] = kwargs["z"][:, :, :2, :2, :2]
    with torch.no_grad():
        module(**kwargs)


@pytest.mark.parametrize("half", ["encoder", "decoder"])
@pytest.mark.parametrize("name", HALVES)
def test_a_half_gets_what_its_pipeline_passes(name, half):
    known = HALVES[name]
    module = half_class(getattr(diffusers, name), half).from_config(known["settings"]).eval()

    inputs = half_inputs(module, "cpu", torch.float32)

    name = "sample" if half == "encoder" else "latents"
    assert {key: list(value.shape) for key, value in inputs.kwargs.items()} == {name: known[name]}
    torch.manual_seed(0)
    with torch.no_grad():
        module(**tree_map(drawn, dict(inputs.kwargs)))


def told(value: Any) -> Any:
    if isinstance(value, torch.Tensor):
        return str(InputSpec.of("", value)).removeprefix("=")
    if isinstance(value, Mapping):
        return {key: told(each) for key, each in value.items()}
    return [told(each) for each in value] if isinstance(value, (list, tuple)) else value


def drawn(value: Any) -> Any:
    is_drawn = isinstance(value, torch.Tensor) and value.is_floating_point()
    return torch.rand_like(value) if is_drawn else value


def test_a_decoder_of_frames_takes_as_many_as_there_are_latents():
    """Stable Video Diffusion passes the frames of one video as the batch, and their number."""
    settings = HALVES["AutoencoderKLTemporalDecoder"]["settings"]
    module = half_class(diffusers.AutoencoderKLTemporalDecoder, "decoder").from_config(settings).eval()
    latents = torch.rand(3, 4, 16, 16)

    with torch.no_grad():
        torch.testing.assert_close(module(latents), module.decode(latents, num_frames=3).sample)


def test_an_input_that_no_pipeline_passes_is_not_missed():
    settings = CLASSES["SanaWMTransformer3DModel"]["settings"]

    inputs = derive_inputs(diffusers.SanaWMTransformer3DModel.from_config(settings), "cpu", None)

    assert not inputs.omitted
    assert any("raymats" in note for note in inputs.assumptions)


def test_an_assumed_size_is_that_of_the_first_input():
    settings = CLASSES["MMAudioVocoder"]["settings"]

    inputs = derive_inputs(diffusers.MMAudioVocoder.from_config(settings), "cpu", None)

    assert "the config specifies no size: assuming [2, 4, 1024] for mel" in inputs.assumptions


def test_a_model_that_would_get_no_input_is_refused():
    class Silent(diffusers.MMAudioVocoder):
        def forward(self, sounds=None): ...

    model = Silent.from_config(CLASSES["MMAudioVocoder"]["settings"])

    with pytest.raises(SourceError, match=r"^Silent requires 'sounds', which its config does not determine"):
        derive_inputs(model, "cpu", None)
