"""Audio masks as Python numbers. Some models read the values of a mask, which are unknown in a trace."""

from __future__ import annotations

import inspect
import sys
from collections.abc import Callable, Mapping
from typing import Any

import torch
from torch import nn

from fakexport._torch.operators.real_execution import real_execution
from fakexport.models.sources.media_inputs.fixed_numbers import as_numbers, buffer_of
from fakexport.models.sources.transformers.exporter_patches import computed_inputs
from fakexport.models.sources.transformers.input_request import InputRequest

_SPECTROGRAM = "input_features"
_MASKS = ("input_features_mask", "feature_attention_mask")
_LENGTHS = "feature_lens"
_PADDED = "padded_feature"


def fixed_masks(request: InputRequest, inputs: Mapping[str, Any]) -> dict[str, list[int]]:
    """Convert audio masks to Python numbers. Each audio clip is assumed to fill all frames of its row."""
    sounds = {_SPECTROGRAM: tuple(inputs[_SPECTROGRAM].shape)} if _SPECTROGRAM in inputs else {}
    return {
        name: as_numbers(
            request.module,
            name,
            inputs[name],
            [inputs[name].shape[1]] * request.batch,
            fits=sounds,
            inside=_windows(request, *sounds.values()),
        )
        for name in _MASKS
        if isinstance(inputs.get(name), torch.Tensor)
    }


def _windows(
    request: InputRequest, *sounds: tuple[int, ...]
) -> tuple[nn.Module, Callable[..., dict[str, Any]]] | None:
    """Return the encoder that splits audio into windows, and a function that converts its arguments.

    The function passes the windows as buffers with known values. The windows depend only on the lengths of
    the clips (Qwen Omni).
    """
    tower: Any = next((part for part in request.module.modules() if _is_packed(type(part))), None)
    if tower is None or len(sounds) != 1 or sounds[0][2] != 2 * tower.n_window:
        return None
    batch, bins, frames = sounds[0]
    with real_execution():
        lengths = torch.full((batch,), frames)
        found = computed_inputs(tower, {_SPECTROGRAM: torch.zeros(bins, batch * frames), _LENGTHS: lengths})
    assert found.pop(_PADDED).shape == sounds[0]
    for name, value in found.items():
        tower.register_buffer(buffer_of(name), request.values(value), persistent=False)

    def changed(packed: torch.Tensor, **others: Any) -> dict[str, Any]:
        known = {name: getattr(tower, buffer_of(name)) for name in found}
        return {**others, _PADDED: packed.unflatten(1, (batch, frames)).transpose(0, 1), **known}

    return tower, changed


def is_sound_tower(model_class: Any) -> bool:
    """Return whether a class is an encoder that splits audio clips into windows by their lengths (Qwen)."""
    parameters = inspect.signature(model_class.forward).parameters.keys()
    computes = hasattr(sys.modules[model_class.__module__], "get_audio_cu_seqlens")
    return computes and _SPECTROGRAM in parameters and not {"input_ids", "inputs_embeds"} & parameters


def _is_packed(part: Any) -> bool:
    """Return whether a class splits audio into windows and takes a batch as one sequence."""
    return is_sound_tower(part) and _LENGTHS in inspect.signature(part.forward).parameters
