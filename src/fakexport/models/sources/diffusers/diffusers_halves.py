"""Split an autoencoder into two models: an encoder and a decoder.

The `forward` of an autoencoder runs both in sequence, but no pipeline does that. The encoder of a variational
autoencoder returns a distribution. Its program returns the mean and the standard deviation, and draws no
sample.
"""

from __future__ import annotations

import inspect
from typing import Any

import torch
from torch import nn

from fakexport.models.sources.diffusers.diffusers_inputs import InputTable
from fakexport.models.sources.source import ExampleInputs
from fakexport.models.sources.source_error import SourceError, first_line

HALVES = ("encoder", "decoder")
_FRAMES = "num_frames"
_TILED = "AutoencoderKLAllegro"


def has_halves(model_class: Any) -> bool:
    """Return whether a model class has both `encode` and `decode`."""
    return all(callable(getattr(model_class, name, None)) for name in ("encode", "decode"))


def half_class(model_class: Any, half: str) -> Any:
    """Return a subclass whose `forward` runs only the encoder or the decoder. Weight names are unchanged."""
    names = {"__module__": model_class.__module__, "__qualname__": model_class.__qualname__}
    forward = _encode if half == "encoder" else _decode
    return type(model_class.__name__, (model_class,), {"forward": forward, **names})


def half_inputs(
    module: nn.Module, device: str, dtype: torch.dtype | None, *, batch: int = 2
) -> ExampleInputs:
    """Return the input of an encoder or decoder.

    The input of a decoder has the shape of the encoder's output. If the table of inputs does not have this
    shape, the encoder is run to determine it.
    """
    model: Any = module
    name = type(module).__name__
    is_encoder = type(module).forward is _encode
    required = _required_besides(model.encode if is_encoder else model.decode)
    if more := [each for each in required if each != _FRAMES]:
        raise SourceError(
            f"{name} requires {', '.join(more)} in addition to the latents: "
            "write a factory that returns the encoder or the decoder, and its inputs"
        )
    table = InputTable(module, device, dtype, batch)
    notes = []
    if "B" in table:
        notes.append(f"a batch of 1, the only size that {name} supports")
    if name == _TILED:
        model.enable_tiling()
        notes.append(f"fakexport called enable_tiling(), which {name} requires")
    sample = table.value("sample")
    if not table.has_own_size:
        notes.append(f"the config specifies no size: assuming {list(sample.shape)} as the encoder's input")
    if is_encoder:
        notes.append(
            "the encoder returns the mean and the standard deviation of the latents, without drawing a sample"
        )
        return ExampleInputs(kwargs={"sample": sample}, assumptions=tuple(notes))
    latents = table.value("latents")
    if latents is None:
        latents = _encoded(module, sample)
    if _FRAMES in required:
        notes.append(f"{_FRAMES}: the latents are the frames of one video")
    notes.append("the decoder takes latents that are already divided by scaling_factor, as in a pipeline")
    return ExampleInputs(kwargs={"latents": latents}, assumptions=tuple(notes))


def _encoded(module: nn.Module, sample: torch.Tensor) -> torch.Tensor:
    try:
        with torch.no_grad():
            encoded = _encode(module, sample)
    except Exception as error:
        raise SourceError(
            f"the shape of the latents of {type(module).__name__} is unknown because its encoder "
            f"does not run on {list(sample.shape)}: {first_line(error)}; use --input "
            "latents=DTYPE[DIMS]"
        ) from error
    return torch.zeros_like(encoded["mean"] if isinstance(encoded, dict) else encoded)


def _required_besides(method: Any) -> list[str]:
    _, *others = inspect.signature(method).parameters.values()
    return [
        each.name for each in others if each.default is each.empty and each.kind is each.POSITIONAL_OR_KEYWORD
    ]


def _encode(self: Any, sample: torch.Tensor) -> Any:
    encoded = self.encode(sample)
    found = getattr(encoded, "latent_dist", None)
    if found is not None:
        is_one_value = not hasattr(found, "std")
        return found.mode() if is_one_value else {"mean": found.mean, "std": found.std}
    return _only(encoded)


def _decode(self: Any, latents: torch.Tensor) -> Any:
    # The pipelines of such a decoder pass the frames of one video as its batch.
    more = {_FRAMES: latents.shape[0]} if _FRAMES in _required_besides(self.decode) else {}
    return _only(self.decode(latents, **more))


def _only(result: Any) -> Any:
    """If a result contains only one tensor, return this tensor. Other results are returned unchanged."""
    if isinstance(result, torch.Tensor):
        return result
    for name in ("sample", "latents", "latent"):
        if isinstance(value := getattr(result, name, None), torch.Tensor):
            return value
    return result[0] if isinstance(result, tuple) else result
