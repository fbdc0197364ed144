"""Derive example inputs of a transformers model from its config and the signature of its `forward`."""

from __future__ import annotations

import inspect
from collections.abc import Mapping
from contextlib import nullcontext
from dataclasses import replace
from types import MappingProxyType
from typing import Any

import torch
from torch import nn

from fakexport._torch.emulation.fake_tensors import mode_of
from fakexport.emulation.history import recording
from fakexport.models.sources.media_inputs.audio_masks import is_sound_tower
from fakexport.models.sources.media_inputs.fixed_numbers import fixed_notes
from fakexport.models.sources.media_inputs.image_grids import grid_layout, is_grid_tower
from fakexport.models.sources.media_inputs.input_table import builder, height_and_width, inputs_of_type
from fakexport.models.sources.media_inputs.placeholder_tokens import with_other_modalities
from fakexport.models.sources.media_inputs.processor_inputs import Processor
from fakexport.models.sources.media_inputs.traceable_inputs import traceable_inputs
from fakexport.models.sources.source import ExampleInputs
from fakexport.models.sources.source_error import SourceError
from fakexport.models.sources.transformers.input_request import InputRequest, Underivable


def derive_inputs(
    module: nn.Module,
    device: str,
    dtype: torch.dtype | None,
    *,
    batch: int = 2,
    sequence: int = 16,
    processor: Processor | None = None,
) -> ExampleInputs:
    """Return keyword inputs for one forward pass, by default with a batch of 2 and 16 text tokens.

    They include the required inputs and the main input of every modality. Only the values of sizes, positions
    and masks are meaningful.

    Args:
        processor: Provides the inputs if its files exist and the model takes images or audio. Otherwise, the
            inputs are derived from the config.
    Raises:
        SourceError: the module requires an input that cannot be derived from its config, or has no `forward`.
    """
    if type(module).forward is nn.Module.forward:
        raise SourceError(
            f"{type(module).__name__} has no forward: write a factory that returns a module whose forward "
            f"calls the method that you need{_parts_of(module)}"
        )
    request = InputRequest.of(module, device, dtype, batch, sequence)
    if is_sound_tower(type(module)):
        raise SourceError(
            f"{type(module).__name__} requires windows of audio clips, which its config does not determine: "
            "use --input NAME=DTYPE[DIMS], or check the whole model"
        )
    mode = mode_of(module.parameters())
    # Some models read the token ids to find their placeholder tokens.
    with nullcontext() if mode is None else recording(mode):
        if is_grid_tower(request):
            return _tower_inputs(request)
        # In the order of the signature, so that the first underivable input is the same in every process.
        wanted = _wanted(request)
        names = [*request.parameters, *sorted(wanted - request.parameters.keys())]
        wanted_names = [name for name in names if name in wanted]
        found, refused = _processed(request, processor, wanted_names)
        if found is None:
            inputs = {name: _derived(name, request) for name in wanted_names}
            found = with_other_modalities(request, inputs)
    named = [name for name in request.parameters if name in found.kwargs]
    in_order = dict.fromkeys([*named, *found.kwargs])
    said = _TYPE_ASSUMPTIONS.get(request.config.model_type, ())
    return replace(
        found,
        kwargs={name: found.kwargs[name] for name in in_order},
        assumptions=(*said, *refused, *found.assumptions),
    )


def _processed(
    request: InputRequest, processor: Processor | None, wanted: list[str]
) -> tuple[ExampleInputs | None, tuple[str, ...]]:
    """Return the inputs from the processor. Wanted inputs that it does not return are derived and added.

    Returns:
        The inputs, or None if there is no processor or if it fails; and, if it fails, a sentence with the
        reason.
    """
    try:
        made = None if processor is None else processor.inputs(request)
    except Underivable as reason:
        assert processor is not None
        return None, (f"the processor of {processor.place.name} was not used: {reason}",)
    if made is None:
        return None, ()
    values, note = made
    text = {"input_ids", "attention_mask"} if "input_ids" in values else set()
    others = {name: _derived(name, request) for name in wanted if name not in {*values, *text}}
    try:
        found, notes, is_complete = traceable_inputs(request, {**others, **values})
    except Underivable as reason:
        raise SourceError(
            f"{note}, and {type(request.module).__name__} does not accept them: {reason}; use --input "
            f"NAME=DTYPE[DIMS] for {', '.join(values)}"
        ) from reason
    said = (*(notes if is_complete else ()), *fixed_notes(found))
    return ExampleInputs(kwargs=found, assumptions=(note, *said)), ()


def _tower_inputs(request: InputRequest) -> ExampleInputs:
    """Return image patches and their grids, as inputs of a vision tower that is used without its model."""
    try:
        found, notes, is_complete = traceable_inputs(request, grid_layout(request, height_and_width(request)))
    except Underivable as reason:
        name = next(iter(request.parameters))
        raise SourceError(
            f"{type(request.module).__name__} requires {name!r}, which its config does not determine: "
            f"{reason}; use --input NAME=DTYPE[DIMS]"
        ) from reason
    said = (*(notes if is_complete else ()), *fixed_notes(found))
    return ExampleInputs(kwargs=found, assumptions=said)


def _parts_of(module: nn.Module) -> str:
    """Return the children that are models of transformers as the end of a message; "" if there are none."""
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
        main = "input_values"  # SpeechEncoderDecoderModel, whose encoder can have any class.
    of_type = inputs_of_type(request.config.model_type)
    never = {name for name, text in of_type.items() if text == "never"}
    wanted |= of_type.keys() | ({main, *_ALWAYS_GIVEN} & parameters.keys())
    if wanted.isdisjoint({"decoder_input_ids", "inputs"}) or "qformer_input_ids" in wanted:
        wanted |= {"input_ids"} & parameters.keys()
    if "input_ids" in wanted - never:
        wanted |= {"attention_mask"} & parameters.keys()
    wanted -= never
    if getattr(request.config, "default_language", None) is not None:
        wanted -= {"lang_ids"}  # X-MOD uses the default language.
    return wanted or set(list(parameters)[:1])


def _derived(name: str, request: InputRequest) -> Any:
    build = builder(request.config.model_type, name)
    made = None if build is None else build(request)
    if made is None:
        model = type(request.module).__name__
        kind = getattr(request.parameters[name].annotation, "__name__", "Tensor")
        how = f"use --input {name}=DTYPE[DIMS]"
        if "Tensor" not in kind and isinstance(request.parameters[name].annotation, type):
            how = f"it is a {kind}, not a tensor: write a factory that returns the model and its inputs"
        raise SourceError(f"{model} requires {name!r}, which its config does not determine: {how}")
    return made


# Inputs that are required, although the signature of `forward` declares them as optional.
_ALWAYS_GIVEN = ("decoder_input_ids", "visual_feats", "visual_pos")

_TYPE_ASSUMPTIONS: Mapping[str, tuple[str, ...]] = MappingProxyType(
    {
        "rag": (
            "the retrieved documents and their scores are inputs of the program; the question encoder, "
            "which only the retriever uses, is not in the program",
        )
    }
)
