"""Which inputs single classes of diffusers get: the shapes of their pipelines, which eager mode runs."""

from typing import Any

import pytest
import torch

from fakexport._torch.pytree import tree_map
from fakexport.sources import SourceError
from fakexport.sources.diffusers_halves import half_class, half_inputs
from fakexport.sources.diffusers_inputs import derive_inputs
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
    settings, shapes = CLASSES[name]
    module = getattr(diffusers, name).from_config(settings).eval()

    inputs = derive_inputs(module, "cpu", torch.float32)

    found = {key: told(value) for key, value in inputs.kwargs.items()}
    assert found == {key: expected(key, shape) for key, shape in shapes.items()}
    torch.manual_seed(0)
    kwargs = tree_map(drawn, dict(inputs.kwargs))
    if name == _WITH_ALL_SCORES:
        kwargs["z"] = kwargs["z"][:, :, :2, :2, :2]
    with torch.no_grad():
        module(**kwargs)


@pytest.mark.parametrize("half", ["encoder", "decoder"])
@pytest.mark.parametrize("name", HALVES)
def test_a_half_gets_what_its_pipeline_passes(name, half):
    settings, sample, latents = HALVES[name]
    module = half_class(getattr(diffusers, name), half).from_config(settings).eval()

    inputs = half_inputs(module, "cpu", torch.float32)

    wanted = {"sample": sample} if half == "encoder" else {"latents": latents}
    assert {key: list(value.shape) for key, value in inputs.kwargs.items()} == wanted
    torch.manual_seed(0)
    with torch.no_grad():
        module(**tree_map(drawn, dict(inputs.kwargs)))


def told(value: Any) -> Any:
    if isinstance(value, torch.Tensor):
        return value.dtype, list(value.shape)
    if isinstance(value, dict):
        return {key: told(each) for key, each in value.items()}
    if isinstance(value, (list, tuple)):
        return type(value)(told(each) for each in value)
    return value


def expected(key: str, shape: Any) -> Any:
    if key == "control_type_idx":
        return shape
    if isinstance(shape, dict):
        return {name: expected(key, each) for name, each in shape.items()}
    if isinstance(shape, tuple) and isinstance(shape[0], torch.dtype):
        return shape
    if isinstance(shape, list) and all(isinstance(each, int) for each in shape):
        return torch.float32, shape
    return type(shape)(expected(key, each) for each in shape) if isinstance(shape, (list, tuple)) else shape


def drawn(value: Any) -> Any:
    is_drawn = isinstance(value, torch.Tensor) and value.is_floating_point()
    return torch.rand_like(value) if is_drawn else value


def test_a_decoder_of_frames_takes_as_many_as_there_are_latents():
    """Stable Video Diffusion passes the frames of one video as the batch, and their number."""
    settings, _, _ = HALVES["AutoencoderKLTemporalDecoder"]
    module = half_class(diffusers.AutoencoderKLTemporalDecoder, "decoder").from_config(settings).eval()
    latents = torch.rand(3, 4, 16, 16)

    with torch.no_grad():
        torch.testing.assert_close(module(latents), module.decode(latents, num_frames=3).sample)


def test_an_input_that_no_pipeline_passes_is_not_missed():
    settings, _ = CLASSES["SanaWMTransformer3DModel"]

    inputs = derive_inputs(diffusers.SanaWMTransformer3DModel.from_config(settings), "cpu", None)

    assert not inputs.omitted
    assert any("raymats" in note for note in inputs.assumptions)


def test_an_assumed_size_is_that_of_the_first_input():
    settings, _ = CLASSES["MMAudioVocoder"]

    inputs = derive_inputs(diffusers.MMAudioVocoder.from_config(settings), "cpu", None)

    assert "its config names no size: mel of [2, 4, 1024] assumed" in inputs.assumptions


def test_a_model_that_would_get_no_input_is_refused():
    class Silent(diffusers.MMAudioVocoder):
        def forward(self, sounds=None): ...

    model = Silent.from_config(CLASSES["MMAudioVocoder"][0])

    with pytest.raises(SourceError, match=r"^Silent requires 'sounds', which its config does not determine"):
        derive_inputs(model, "cpu", None)
