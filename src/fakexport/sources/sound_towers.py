"""Encoders that listen to all sounds of a batch in one sequence, and need their lengths: Qwen's."""

from __future__ import annotations

import inspect
import sys
from typing import Any

import torch
from torch import nn

from fakexport._torch.real_execution import real_execution
from fakexport.sources.audio_inputs import features
from fakexport.sources.exporter_patches import computed_inputs, computed_note
from fakexport.sources.input_request import InputRequest
from fakexport.sources.source import ExampleInputs

_SOUND = "input_features"
_LENGTHS = "feature_lens"
_MASK = "input_features_mask"
PADDED = "padded_feature"


def is_sound_tower(model_class: Any) -> bool:
    """Return whether `forward` takes sounds and their lengths, and windows of them from the caller."""
    parameters = inspect.signature(model_class.forward).parameters
    is_text = {"input_ids", "inputs_embeds"} & parameters.keys()
    computes = hasattr(sys.modules[model_class.__module__], "get_audio_cu_seqlens")
    return computes and _SOUND in parameters and not is_text and bool({_LENGTHS, _MASK} & parameters.keys())


def sound_tower_inputs(request: InputRequest) -> ExampleInputs:
    """Return one sound per row of the batch, and what depends on the values of their lengths.

    No program can compute these: how long the windows are in which a sound is heard, and which frames of them
    are sound. So they are inputs too, as `transformers.exporters` computes them. They depend on no weight.
    Where the sound itself is cut into windows outside (Qwen2.5-Omni), the windows are the input.
    """
    sound = features(request)
    batch, bins, frames = sound.shape
    lengths = _LENGTHS if is_packed(type(request.module)) else _MASK
    with real_execution():
        computed = windows(request.module, batch, bins, frames)
    if PADDED in computed:
        inputs = {PADDED: request.floats(*computed[PADDED].shape)}
    else:
        inputs = {_SOUND: sound, _MASK: request.ids(batch, frames, value=1)}
    inputs |= {name: request.values(value) for name, value in computed.items() if name != PADDED}
    note = f"{batch} sounds of {frames} frames; {computed_note(computed, f'{_SOUND} and {lengths}')}"
    return ExampleInputs(kwargs=inputs, assumptions=(note,))


def is_packed(model_class: Any) -> bool:
    """Return whether a class is such an encoder, and takes all sounds in one row."""
    return is_sound_tower(model_class) and _LENGTHS in inspect.signature(model_class.forward).parameters


def windows(tower: nn.Module, batch: int, bins: int, frames: int) -> dict[str, torch.Tensor]:
    """Return what `transformers.exporters` computes for sounds of equal length, for real."""
    if is_packed(type(tower)):
        packed = {_SOUND: torch.zeros(bins, batch * frames), _LENGTHS: torch.full((batch,), frames)}
        return computed_inputs(tower, packed)
    masked = {_SOUND: torch.zeros(batch, bins, frames), _MASK: torch.ones(batch, frames).long()}
    return computed_inputs(tower, masked)
