"""In which layouts models take sounds: spectrograms or samples, with masks that say how long they are."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from typing import Any

import torch
from torch import nn

from fakexport._torch.real_execution import real_execution
from fakexport.sources.audio_inputs import FRAMES, features, waveform
from fakexport.sources.fixed_numbers import as_numbers
from fakexport.sources.input_request import InputRequest
from fakexport.sources.sound_towers import PADDED, is_packed, windows

_SPECTROGRAM = "input_features"
_MASKS = ("input_features_mask", "feature_attention_mask")

# Samples of a sound that more strides divide than a second of it has (Muse Spark).
_DIVISIBLE = 19_200

# Settings that say how many bins a spectrogram has, and how many it has where none does (Gemma 4).
_BINS = (
    "num_mel_bins",
    "feature_size",
    "input_feat_per_channel",
    "input_dim",
    "feature_projection_input_dim",
)
_USUAL_BINS = 128


def sound_layouts(request: InputRequest, name: str) -> Iterator[dict[str, Any]]:
    """Yield what one sound per row of text may look like to the model.

    Args:
        name: `input_features`, `input_values`, or `audio_input_ids`: a number for each bin of a frame, or the
            code of a frame in each codebook.
    """
    if name == "audio_input_ids":
        codes = request.setting("n_mel_bins", "num_codebooks")
        yield {name: request.ids(request.batch, FRAMES, codes)}
        return
    if name == "input_values":
        sound = waveform(request)
        if "input_values_cutoffs" in request.parameters:
            yield {name: sound.reshape(request.batch, 1, -1), **_ends(request, sound.shape[-1])}
            return
        yield {name: sound, **_mask(request, ("padding_mask",), sound.shape[-1])}
        yield {name: sound.unsqueeze(1), **_mask(request, ("padding_mask",), sound.shape[-1])}
        longer = request.floats(request.batch, *sound.shape[1:-1], _DIVISIBLE)
        yield {name: longer, **_mask(request, ("padding_mask",), _DIVISIBLE)}
        return
    sound = features(request)
    if "chunk_sample_lengths" in request.parameters:
        yield {name: sound, **_sample_lengths(request, sound.shape[-1])}
        return
    spectrograms = [sound, sound.transpose(-1, -2).contiguous()]
    if request.setting(*_BINS) is None:
        spectrograms.append(request.floats(request.batch, sound.shape[-2], _USUAL_BINS))
    for spectrogram in spectrograms:
        for dim in (-1, -2):
            mask = _mask(request, _MASKS, spectrogram.shape[dim])
            yield {name: spectrogram, **mask}
            # A model that inverts its mask takes no numbers: it would drop the sound (Gemma 4).
            yield {name: spectrogram, **{each: value.bool() for each, value in mask.items()}}


def _sample_lengths(request: InputRequest, frames: int) -> dict[str, Any]:
    """Return of how many samples each spectrogram is, as numbers: the number of features depends on them."""
    name, samples = "chunk_sample_lengths", frames * request.setting("hop_length")
    lengths = request.ids(request.batch, value=samples)
    return {name: as_numbers(request.module, name, lengths, [samples] * request.batch)}


def _ends(request: InputRequest, samples: int) -> dict[str, Any]:
    """Return where the sounds of a row end, one in each row, as numbers: models cut them out (CSM)."""
    name = "input_values_cutoffs"
    ends = request.ids(request.batch, 1, value=samples)
    sounds = {"input_values": (request.batch, 1, samples)}
    return {name: as_numbers(request.module, name, ends, [[samples]] * request.batch, fits=sounds)}


def fixed_masks(request: InputRequest, inputs: Mapping[str, Any]) -> dict[str, list[int]]:
    """Return the masks of sounds as numbers: how many frames each sound has, all of its row.

    For a model that reads the values of its mask where a trace has none.
    """
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
    """Return an encoder that cuts sounds into windows by their lengths, and its arguments with what tells it
    the windows of sounds that are one each: numbers that depend on nothing but these (Qwen Omni).
    """
    tower: Any = next((part for part in request.module.modules() if is_packed(type(part))), None)
    if tower is None or len(sounds) != 1 or sounds[0][2] != 2 * tower.n_window:
        return None
    batch, _, frames = sounds[0]
    with real_execution():
        found = windows(tower, *sounds[0])
    assert found.pop(PADDED).shape == sounds[0]
    for name, value in found.items():
        tower.register_buffer(f"fixed_{name}", request.values(value), persistent=False)

    def changed(packed: torch.Tensor, **others: Any) -> dict[str, Any]:
        known = {name: getattr(tower, f"fixed_{name}") for name in found}
        return {**others, PADDED: packed.unflatten(1, (batch, frames)).transpose(0, 1), **known}

    return tower, changed


def _mask(request: InputRequest, names: tuple[str, ...], length: int) -> dict[str, torch.Tensor]:
    """Return a mask of a sound that is as long as can be, under the first name that the encoder takes.

    A mask that it does not take is one of its features (Granite Speech), all of which count here.
    """
    taken = request.encoder_parameters("get_audio_features")
    name = next((n for n in names if n in request.parameters and (taken is None or n in taken)), None)
    return {} if name is None else {name: request.ids(request.batch, length, value=1)}
