"""The halves of an autoencoder: one program encodes, another decodes.

Its `forward` does both, one after the other, which no pipeline calls. The encoder of a variational one is a
distribution: the program returns its mean and its standard deviation, and draws nothing.
"""

from __future__ import annotations

import inspect
from typing import Any

import torch
from torch import nn

from fakexport.sources.diffusers_sizes import (
    SAMPLES,
    VIDEO_SIDE,
    frame_count,
    has_own_size,
    latent_shape,
    sides,
)
from fakexport.sources.input_request import InputRequest
from fakexport.sources.source import ExampleInputs
from fakexport.sources.source_error import SourceError, first_line

HALVES = ("encoder", "decoder")
_FRAMES = "num_frames"
# The mask of one has a row for each item of the batch too many; one makes its tiles of the first item.
_ONE_AT_A_TIME = ("AutoencoderKLHunyuanVideo15", "AutoencoderKLAllegro")
_TILED = ("AutoencoderKLAllegro",)
_UNSCALED = "latents are those that the decoder takes: a pipeline divides by scaling_factor before"


def has_halves(model_class: Any) -> bool:
    """Return whether a class of models encodes and decodes."""
    return all(callable(getattr(model_class, name, None)) for name in ("encode", "decode"))


def half_class(model_class: Any, half: str) -> Any:
    """Return the class of a half: the same modules and names of weights, and another `forward`."""
    names = {"__module__": model_class.__module__, "__qualname__": model_class.__qualname__}
    forward = _encode if half == "encoder" else _decode
    return type(model_class.__name__, (model_class,), {"forward": forward, **names})


def half_inputs(
    module: nn.Module, device: str, dtype: torch.dtype | None, *, batch: int = 2
) -> ExampleInputs:
    """Return the input of a half.

    That of a decoder has the shape of what the encoder returns, which is asked.

    Raises:
        SourceError: The encoder does not run on an image of the size that the config names.
    """
    method = module.encode if type(module).forward is _encode else module.decode
    if more := [name for name in _required_besides(method) if name != _FRAMES]:
        raise SourceError(
            f"{type(module).__name__} needs {', '.join(more)} next to the latents: write a factory that "
            "returns the half and its inputs"
        )
    notes = []
    if (name := type(module).__name__) in _ONE_AT_A_TIME:
        batch = 1
        notes.append(f"a batch of 1: {name} takes no other")
    if name in _TILED:
        tiled: Any = module
        tiled.enable_tiling()
        notes.append(f"enable_tiling() was called: {name} does not run without")
    own = next((p.dtype for p in module.parameters() if p.is_floating_point()), torch.get_default_dtype())
    request = InputRequest(module, device, dtype or own, batch)
    sample = request.floats(*latent_shape(request))
    if not has_own_size(request):
        notes.append(f"its config names no size: the encoder's input is {list(sample.shape)}, as assumed")
    if type(module).forward is _encode:
        notes.append(
            "the encoder returns the mean and the standard deviation of the latents, and draws nothing"
        )
        return ExampleInputs(kwargs={"sample": sample}, assumptions=tuple(notes))
    if (shape := _known_latents(request)) is not None:
        return ExampleInputs(kwargs={"latents": request.floats(*shape)}, assumptions=(*notes, _UNSCALED))
    try:
        with torch.no_grad():
            encoded = _encode(module, sample)
    except Exception as error:
        raise SourceError(
            f"the latents of {type(module).__name__} cannot be told: its encoder does not run on "
            f"{list(sample.shape)}: {first_line(error)}; use --input latents=DTYPE[DIMS]"
        ) from error
    latents = encoded["mean"] if isinstance(encoded, dict) else encoded
    if _FRAMES in _required_besides(method):
        notes.append(f"{_FRAMES}: the latents are the frames of one video")
    notes.append(_UNSCALED)
    return ExampleInputs(kwargs={"latents": torch.zeros_like(latents)}, assumptions=tuple(notes))


def _known_latents(request: InputRequest) -> tuple[int, ...] | None:
    """Return the shape of the latents where the encoder cannot be asked; None where it can.

    One transforms waveforms in float32 alone, whatever the dtype of the decoder is; one has parameters that
    are made by `torch.Tensor([...])`, on the CPU whatever the default device is.
    """
    module: Any = request.module
    if type(module).__name__ == "MMAudioVAE":
        return (request.batch, int(request.setting("latent_channels")), SAMPLES)
    if type(module).__name__ == "AutoencoderVidTok":
        frames = 1 + (frame_count(request) - 1) // module.temporal_compression_ratio
        rows, columns = (side // 2 ** len(module.encoder.spatial_ds) for side in sides(request, VIDEO_SIDE))
        return (request.batch, int(request.setting("z_channels")), frames, rows, columns)
    return None


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
    """Return the tensor of a result that has one, else the result."""
    if isinstance(result, torch.Tensor):
        return result
    for name in ("sample", "latents", "latent"):
        if isinstance(value := getattr(result, name, None), torch.Tensor):
            return value
    return result[0] if isinstance(result, tuple) else result
