"""What a pipeline of diffusers passes to its model in bfloat16, next to the example inputs."""

from __future__ import annotations

import inspect
from collections.abc import Mapping
from typing import Any

import pytest
import torch

from fakexport._torch.pytree import tree_leaves
from fakexport.models.sources import parse_input_spec
from fakexport.models.sources.diffusers.diffusers_inputs import derive_inputs
from tests.diffusers_classes import PIPELINES

diffusers = pytest.importorskip("diffusers")
pytestmark = [pytest.mark.slow, pytest.mark.zoo, pytest.mark.filterwarnings("ignore")]

# LTX takes sizes, or the coordinates that it computes from them. A text without padding needs no mask.
NUMBERS = {"num_frames", "height", "width", "rope_interpolation_scale"}
MORE = {"LTXPipeline": {"video_coords"}, "QwenImagePipeline": {"encoder_hidden_states_mask"}}


def given(value: Any) -> Any:
    """The tensor that a text such as `bfloat16[1,8,12]` describes; other values as they are."""
    if not isinstance(value, str):
        return value
    spec = parse_input_spec(f"x={value}")
    make = torch.rand if spec.dtype.is_floating_point else torch.ones
    return make(spec.shape, dtype=spec.dtype)


@pytest.mark.parametrize("name", PIPELINES)
def test_example_inputs_are_those_that_the_pipeline_passes(name):
    known = PIPELINES[name]
    model = getattr(diffusers, known["class"]).from_config(known["settings"]).to(torch.bfloat16).eval()
    text = {key: given(value) for key, value in known["given"].items()}
    passed = passed_by(name, getattr(diffusers, known["scheduler"])(), model, text)

    found = derive_inputs(model, "cpu", torch.bfloat16).kwargs

    tensors = {key: value for key, value in passed.items() if key not in NUMBERS}
    assert {key: kinds(found.get(key)) for key in tensors} == {key: kinds(tensors[key]) for key in tensors}
    assert {key for key in found.keys() - passed.keys() if kinds(found[key])} <= MORE.get(name, set())


def kinds(value: Any) -> list[tuple[torch.dtype, int]]:
    return [(leaf.dtype, leaf.dim()) for leaf in tree_leaves(value) if isinstance(leaf, torch.Tensor)]


class Passed(Exception):
    """The first call of the model."""


def passed_by(name: str, scheduler: Any, model: Any, text: Mapping[str, Any]) -> dict[str, Any]:
    pipeline_class = getattr(diffusers, name)
    parts = list(inspect.signature(pipeline_class.__init__).parameters)[1:]
    held = {"scheduler": scheduler, "transformer": model, "unet": model}
    empty = {
        part: None
        for part, parameter in inspect.signature(pipeline_class.__init__).parameters.items()
        if part in parts and parameter.default is parameter.empty
    }
    pipeline = pipeline_class(**empty | {part: held[part] for part in parts if part in held})
    pipeline.set_progress_bar_config(disable=True)

    def forward(*args: Any, **kwargs: Any) -> Any:
        bound = inspect.signature(original).bind(*args, **kwargs)
        raise Passed({key: value for key, value in bound.arguments.items() if value is not None})

    original = model.forward
    model.forward = forward
    with torch.no_grad(), pytest.raises(Passed) as raised:
        pipeline(num_inference_steps=2, height=64, width=64, output_type="latent", **text)
    del model.forward
    return raised.value.args[0]
