"""Example inputs of a transformers model, derived from its config and the signature of its `forward`."""

from __future__ import annotations

import inspect
from collections.abc import Callable, Mapping
from contextlib import nullcontext
from dataclasses import replace
from types import MappingProxyType
from typing import Any

import torch
from torch import nn

from fakexport._torch.fake_tensors import mode_of
from fakexport.history import recording
from fakexport.sources.audio_inputs import (
    features,
    features_mask,
    latents,
    noise_sequence,
    spectrogram,
    waveform,
)
from fakexport.sources.image_grids import grid_tower_inputs, is_grid_tower
from fakexport.sources.image_inputs import flattened_patches, image, video
from fakexport.sources.input_request import InputRequest
from fakexport.sources.inputs_by_type import INPUTS_BY_TYPE
from fakexport.sources.placeholder_tokens import with_other_modalities
from fakexport.sources.sound_towers import is_sound_tower, sound_tower_inputs
from fakexport.sources.source import ExampleInputs
from fakexport.sources.source_error import SourceError


def derive_inputs(
    module: nn.Module, device: str, dtype: torch.dtype | None, *, batch: int = 2, sequence: int = 16
) -> ExampleInputs:
    """Return keyword inputs of one forward pass: a batch of 2, and 16 tokens of text, if not told otherwise.

    Every modality's main input is among them, and nothing that the module can do without. Values have a
    meaning where the module takes sizes, positions or masks.

    Args:
        dtype: Dtype of the floating-point inputs; None: that of the module's parameters.
    Raises:
        SourceError: The module requires an input that cannot be derived from its config, or has no `forward`.
    """
    if type(module).forward is nn.Module.forward:
        raise SourceError(
            f"{type(module).__name__} has no forward: write a factory of a module whose forward calls the "
            f"method that you use{_parts_of(module)}"
        )
    own = next((p.dtype for p in module.parameters() if p.is_floating_point()), torch.get_default_dtype())
    request = InputRequest(module, device, dtype or own, batch, sequence)
    mode = mode_of(module.parameters())
    # A model that looks for its placeholder tokens reads them.
    with nullcontext() if mode is None else recording(mode):
        if is_grid_tower(request.parameters):
            return grid_tower_inputs(request)
        if is_sound_tower(type(module)):
            return sound_tower_inputs(request)
        # In the order of the signature: the first that cannot be derived is the same in every process.
        wanted = _wanted(request)
        names = [*request.parameters, *sorted(wanted - request.parameters.keys())]
        inputs = {name: _derived(name, request) for name in names if name in wanted}
        found = with_other_modalities(request, inputs)
    named = [name for name in request.parameters if name in found.kwargs]
    in_order = dict.fromkeys([*named, *found.kwargs])
    said = _SAID_OF.get(request.config.model_type, ())
    return replace(
        found,
        kwargs={name: found.kwargs[name] for name in in_order},
        assumptions=(*said, *found.assumptions),
    )


def _parts_of(module: nn.Module) -> str:
    """Return the model types of parts that are models of their own, for a message."""
    from transformers import CONFIG_MAPPING

    configs = [getattr(part, "config", None) for part in module.children()]
    types = [str(getattr(config, "model_type", "")) for config in configs]
    known = [f"hf:{name}" for name in dict.fromkeys(types) if name in CONFIG_MAPPING]
    return f", or check its parts: {', '.join(known)}" if known else ""


def _wanted(request: InputRequest) -> set[str]:
    parameters = request.parameters
    wanted = {name for name, parameter in parameters.items() if parameter.default is inspect.Parameter.empty}
    main = request.main_input
    if main == "inputs" and "input_values" in parameters:
        main = "input_values"  # a speech encoder, whose class cannot know which
    model_type = request.config.model_type
    if model_type == "pop2piano":
        main = "input_features"  # its class says `input_ids`, which only its decoder takes
    wanted |= INPUTS_BY_TYPE.get(model_type, {}).keys()
    wanted |= {main, *_ALWAYS_GIVEN, *_GIVEN_TO.get(model_type, ())} & parameters.keys()
    if wanted.isdisjoint({"decoder_input_ids", "inputs"}) or "qformer_input_ids" in wanted:
        wanted |= {"input_ids"} & parameters.keys()
    if "input_ids" in wanted:
        wanted |= {"attention_mask"} & parameters.keys()
    wanted -= _NOT_GIVEN_TO.get(model_type, frozenset())
    if getattr(request.config, "default_language", None) is not None:
        wanted -= {"lang_ids"}  # X-MOD takes that one.
    return wanted or set(list(parameters)[:1])


def _derived(name: str, request: InputRequest) -> Any:
    builder = INPUTS_BY_TYPE.get(request.config.model_type, {}).get(name) or _BUILDERS.get(name)
    if builder is None:
        model = type(request.module).__name__
        kind = getattr(request.parameters[name].annotation, "__name__", "Tensor")
        how = f"use --input {name}=DTYPE[DIMS]"
        if "Tensor" not in kind and isinstance(request.parameters[name].annotation, type):
            how = f"it is a {kind}, no tensor: write a factory that returns the model and its inputs"
        raise SourceError(f"{model} requires {name!r}, which its config does not determine: {how}")
    return builder(request)


def _tokens(request: InputRequest) -> torch.Tensor:
    codebooks = getattr(request.config, "num_codebooks", 1)
    if request.config.model_type in ("musicgen_decoder", "musicgen_melody_decoder"):
        return request.ids(request.batch * codebooks, request.sequence)
    if request.config.model_type == "kyutai_speech_to_text":  # text, and a code of each codebook
        return request.ids(request.batch, request.sequence, codebooks + 1)
    return request.ids(request.batch, request.sequence)


def _present(request: InputRequest) -> torch.Tensor:
    return request.ids(request.batch, request.sequence, value=1)


def _decoder_tokens(request: InputRequest) -> torch.Tensor:
    """Return tokens of the decoder; of audio, one row of them for each codebook, or a channel for each."""
    decoder = request.text_config
    if request.config.model_type == "dia":
        return request.ids(request.batch, request.sequence, decoder.num_channels)
    if getattr(decoder, "num_codebooks", 1) > 1:
        return request.ids(request.batch * decoder.num_codebooks, request.sequence)
    return _tokens(request)


def _perceived(request: InputRequest) -> torch.Tensor:
    """Return what a Perceiver takes: any modality, which only the name of its class tells."""
    return image(request) if "Image" in type(request.module).__name__ else _tokens(request)


def _task_tokens(request: InputRequest) -> torch.Tensor:
    return request.ids(request.batch, request.setting("task_seq_len", default=request.sequence))


def _regions(request: InputRequest) -> torch.Tensor:
    """Return features of the regions that a detector found in an image."""
    return request.floats(request.batch, request.sequence, request.setting("visual_feat_dim"))


def _robot_state(request: InputRequest) -> torch.Tensor:
    return request.floats(request.batch, request.config.max_state_dim)


def _noise(request: InputRequest) -> torch.Tensor:
    """Return the noise that actions of a robot are made of; without it, the model draws it."""
    return request.floats(request.batch, request.config.chunk_size, request.config.max_action_dim)


def _timestep(request: InputRequest) -> torch.Tensor:
    return request.floats(request.batch).float()


def _boxes(request: InputRequest) -> torch.Tensor:
    """Return where a region or a word is: left, top, right and bottom, in parts of the page."""
    return request.floats(request.batch, request.sequence, 4)


# Inputs that say nothing of being required, and are.
_ALWAYS_GIVEN = ("decoder_input_ids", "visual_feats", "visual_pos")

# Inputs that say nothing of being required, and are, where other types do without.
_GIVEN_TO: Mapping[str, tuple[str, ...]] = MappingProxyType(
    {
        "audioflamingo3_encoder": ("input_features_mask",),
        "bros": ("bbox",),
        "fsmt": ("decoder_attention_mask",),
        "pi0": ("noise", "timestep"),
        "univnet": ("noise_sequence",),
        "udop": ("bbox",),
    }
)

# Types that take something else in its place; or a mask that the model around a part makes of it.
_NOT_GIVEN_TO: Mapping[str, frozenset[str]] = MappingProxyType(
    {
        "blt_local_encoder": frozenset({"attention_mask"}),
        "qwen3_omni_moe_talker_code_predictor": frozenset({"input_ids", "attention_mask"}),
        "rag": frozenset({"input_ids", "attention_mask"}),
    }
)

_SAID_OF: Mapping[str, tuple[str, ...]] = MappingProxyType(
    {
        "rag": (
            "the documents that a retriever finds are inputs, with their scores: the question encoder, which "
            "only a retriever asks, is not in the program",
        ),
    }
)


def past_values(request: InputRequest) -> torch.Tensor:
    """Return values of shape `[batch, steps]`, or `[batch, steps, channels]` where there are several."""
    channels = request.setting("num_input_channels", "input_size", default=1)
    is_channelled = channels > 1 or request.setting("num_input_channels") is not None
    return request.floats(request.batch, _steps(request), *([channels] if is_channelled else []))


def observed(request: InputRequest) -> torch.Tensor:
    """Return a mask of the shape of `past_values`: nothing is missing."""
    return torch.ones_like(past_values(request))


def past_time_features(request: InputRequest) -> torch.Tensor:
    """Return what is known of each step: `[batch, steps, features]`."""
    return request.floats(request.batch, _steps(request), request.setting("num_time_features", default=1))


def _steps(request: InputRequest) -> int:
    lags = request.setting("lags_sequence", default=[0])
    length = request.setting("context_length", "prediction_length", default=64)
    return int(length + max(lags))


_BUILDERS: Mapping[str, Callable[[InputRequest], Any]] = MappingProxyType(
    {
        "input_ids": _tokens,
        "attention_mask": _present,
        "decoder_attention_mask": _present,
        "decoder_input_ids": _decoder_tokens,
        "qformer_input_ids": _tokens,
        "task_inputs": _task_tokens,
        "inputs": _perceived,
        "pixel_values": image,
        "pixel_values_videos": video,
        "flattened_patches": flattened_patches,
        "visual_feats": _regions,
        "visual_pos": _boxes,
        "bbox": _boxes,
        "input_values": waveform,
        "input_features": features,
        "input_features_mask": features_mask,
        "latents": latents,
        "spectrogram": spectrogram,
        "state": _robot_state,
        "noise": _noise,
        "noise_sequence": noise_sequence,
        "timestep": _timestep,
        "past_values": past_values,
        "past_observed_mask": observed,
        "past_time_features": past_time_features,
    }
)
