"""Sources from transformers: `hf:org/name`, `hf:path/to/config.json`, `hf:MODEL_TYPE`, each with `:CLASS`."""

from __future__ import annotations

import copy
import inspect
import re
import warnings
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import replace
from functools import partial
from pathlib import Path
from types import MappingProxyType
from typing import Any

import torch
from torch import nn
from torch.nn import functional

from fakexport._torch.real_execution import meta_execution
from fakexport.error import type_and_line
from fakexport.hub import HubName
from fakexport.sources.config_limits import nothing_downloaded, within_limits
from fakexport.sources.exporter_patches import (
    empty_layers,
    exporter_patches,
    fp8_kernels,
    import_exporter,
    normalized_heads,
    shortened_sequences,
    uncached_texts,
)
from fakexport.sources.fbgemm_layers import fbgemm_kernels
from fakexport.sources.generation_calls import GenerationCall, use_own_operators
from fakexport.sources.generation_defaults import GENERATION_CONFIG, generation_config_of
from fakexport.sources.hub_model import HubModel, folder_model, hub_model
from fakexport.sources.quantization import Quantization
from fakexport.sources.source import ExampleInputs, Source
from fakexport.sources.source_error import SourceError, import_library, note_default_config
from fakexport.sources.transformers_class import model_class_for, text_part
from fakexport.sources.transformers_config import (
    default_config,
    published_config,
    set_use_cache,
    take_quantization,
)
from fakexport.sources.transformers_inputs import derive_inputs
from fakexport.sources.video_sessions import session_inputs, takes_session
from fakexport.sources.workload import FORWARD, Workload


def transformers_source(
    spec: str,
    name: str,
    *,
    use_cache: bool = False,
    workload: Workload = FORWARD,
    returns_hidden_states: bool = False,
) -> Source:
    """Return the source of a transformers model with untrained weights. No weight is downloaded.

    Args:
        name: `MODEL_TYPE[:CLASS]`, `path/to/config.json[:CLASS]`, `path/to/folder[:CLASS]`, or the name of a
            repository on the hub, `org/name[@revision][:CLASS]`, where there is no such folder.
        use_cache: Whether language models return a key-value cache.
        workload: The call that the example inputs are of; prefill and decode imply the cache.
        returns_hidden_states: Whether the model returns the results of all of its layers.
    Raises:
        SourceError: transformers is missing; as `model_class_for`, `folder_model` and `hub_model` say.
    """
    import_library("transformers", spec)
    model, _, class_name = name.partition(":")
    found = _model(model, class_name or None, is_generated=workload.is_generated)
    config = found.config
    is_default = not class_name and not _is_path(model)
    quantization = take_quantization(config)
    if quantization is None and found.packed:
        quantization = Quantization(", ".join(found.packed), None)
    with warnings.catch_warnings():
        # Model files use what torch deprecates (torch.jit.script), which says nothing about the user's model.
        warnings.simplefilter("ignore", DeprecationWarning)
        model_class, assumed = model_class_for(config, class_name or None, f"hf:{model}")
        import_exporter()
        if quantization is not None:
            quantization.import_packages()
    dtype = config.dtype if isinstance(config.dtype, torch.dtype) else found.dtype
    config = text_part(config, model_class)
    use_cache = use_cache or workload.name in ("prefill", "decode")
    set_use_cache(config, use_cache)
    if returns_hidden_states:
        config.output_hidden_states = True
    generation = None
    if workload.is_generated and found.folder is not None:
        generation = generation_config_of(found.folder)

    def unquantized() -> nn.Module:
        # Not the public AutoModel.from_config, which chooses the class by itself.
        own = copy.deepcopy(config)
        if workload.is_generated:
            use_own_operators(own, model_class, torch.get_default_dtype())
        try:
            built: nn.Module = model_class._from_config(own, dtype=torch.get_default_dtype())
        except Exception as error:
            if is_default and raised_anyway(lambda: model_class._from_config(copy.deepcopy(config))) == (
                type_and_line(error)
            ):
                note_default_config(error, "transformers", model_class.__name__)
            raise
        keep_in_float32(built, torch.get_default_dtype())
        return built.eval()

    def construct() -> nn.Module:
        with within_limits(spec):
            built = unquantized() if quantization is None else quantization.built(unquantized)
        if generation is not None:
            vars(built)["generation_config"] = generation
        return built

    call = GenerationCall(
        workload.name, workload.batch, workload.context, _patched, workload.capacity, workload.is_cache_kept
    )
    return Source(
        spec=spec,
        kind="transformers",
        factory=construct,
        example_inputs=call.inputs
        if workload.is_generated
        else partial(_INPUTS[workload.name], **_sizes(workload)),
        run_inputs=session_inputs if takes_session(model_class) else None,
        tracing=call.tracing if workload.is_generated else _patched,
        dtype=dtype,
        assumptions=tuple(sentence for sentence in (*found.notes, assumed) if sentence),
        left_out=() if use_cache else ("the model is exported without its KV cache (see --use-cache)",),
        quantization=quantization,
        published=published_config(type(found.config)) if is_default else None,
    )


def raised_anyway(build: Callable[[], Any]) -> str | None:
    """Return what a library raises where fakexport has no part in it, or None."""
    try:
        with meta_execution():
            build()
    except Exception as error:  # whatever a constructor raises
        return type_and_line(error)
    return None


def _sizes(workload: Workload) -> dict[str, int]:
    length = "context" if workload.name == "decode" else "sequence"
    return {"batch": workload.batch, length: workload.context}


def _model(model: str, class_name: str | None, *, is_generated: bool) -> HubModel:
    """Return the model of a spec; a folder or file that is there goes before a repository of that name."""
    if not _is_path(model):
        config, assumed = default_config(model)
        return HubModel(config, (_library_default(model), *assumed))
    if model.endswith(".json") or Path(model).exists():
        return folder_model(Path(model), class_name)
    if (name := HubName.parse(model)) is None:
        raise SourceError(f"no such folder: {model}")
    return hub_model(name, class_name, files=(GENERATION_CONFIG,) if is_generated else ())


def _is_path(model: str) -> bool:
    """Return whether a file or folder is meant; one named like a model type needs `./llama`."""
    from transformers import CONFIG_MAPPING

    return "/" in model or model.endswith(".json") or (model not in CONFIG_MAPPING and Path(model).is_dir())


def _library_default(model: str) -> str:
    """Return a note that no published model was taken, and no folder that is called like a model type."""
    text = f"hf:{model} is transformers' default configuration of that type, not a published model"
    is_folder = (Path(model) / "config.json").is_file()
    return text + (f"; the folder is hf:./{model}" if is_folder else "")


@contextmanager
def _patched(module: nn.Module, inputs: ExampleInputs) -> Iterator[None]:
    """Apply the parts of `transformers.exporters.DynamoExporter` that leave the program as it is.

    Left out are its input preparers (they read values; `derive_inputs` gives only inputs that need none),
    its signature patch (these inputs are all named in the signature), its output flags (they are in the
    config already), and its patch of torch's attention: the mathematical variant that it forces on the
    CPU has other strides, and a ViT then has 12 `contiguous` that its plain export has not. Caches that grow
    begin with zeros (`empty_layers`), where a plain export has constants.
    """
    from transformers.exporters.exporter_dynamo import register_cache_pytrees_for_model, reset_model_state
    from transformers.exporters.utils import patch_attribute

    register_cache_pytrees_for_model(module)
    attention = functional.scaled_dot_product_attention
    torchs_own = patch_attribute(functional, "scaled_dot_product_attention", lambda patched: attention)
    with (
        exporter_patches(),
        torchs_own,
        reset_model_state(module),
        normalized_heads(module),
        shortened_sequences(module),
        uncached_texts(module),
        empty_layers(),
        fp8_kernels(module),
        fbgemm_kernels(module),
        nothing_downloaded(),
    ):
        yield


def keep_in_float32(module: nn.Module, dtype: torch.dtype) -> None:
    """Convert what a model names in `_keep_in_fp32_modules` and `_keep_in_fp32_modules_strict`.

    `from_pretrained` reads these weights in float32, such as the convolutions of Inkling. A model that is
    constructed from its config has them in the dtype of all others, and its code then gets dtypes that it
    never gets from a checkpoint. Constants that no checkpoint has stay as they are.

    Source: transformers 5.17 to 5.23, `core_model_loading.py:convert_and_load_state_dict_in_model`.
    """
    owner: Any = module
    plan = owner._get_dtype_plan(dtype) if hasattr(owner, "_get_dtype_plan") else {}
    if not plan:
        return
    kept = re.compile("|".join(f"(?:{name.replace('*', '.*')})" for name in plan))
    for name, held in module.state_dict(keep_vars=True).items():
        if isinstance(held, torch.Tensor) and held.is_floating_point() and kept.search(name):
            held.data = held.data.to(torch.float32)


_OF_TOKENS = (
    "ForCausalLM",
    "LMHeadModel",
    "ForMaskedLM",
    "ForConditionalGeneration",
    "ForTokenClassification",
)
_OF_EXAMPLES = ("ForSequenceClassification", "ForImageClassification", "ForVideoClassification")
_TOKENS = ("decoder_input_ids", "input_ids")


def labelled_inputs(
    module: nn.Module, device: str, dtype: torch.dtype | None, *, batch: int = 2, sequence: int = 16
) -> ExampleInputs:
    """Return inputs of one forward pass with labels, if the model has a loss whose labels are known.

    Models with a label per token and those with a label per example have: their classes are named after it.

    Raises:
        SourceError: as for `derive_inputs`.
    """
    found = derive_inputs(module, device, dtype, batch=batch, sequence=sequence)
    if "labels" not in inspect.signature(module.forward).parameters:
        return found
    shape = _shape(type(module).__name__, found.kwargs, batch)
    if shape is None:
        return found
    labels = torch.zeros(shape, device=device, dtype=torch.long)
    return replace(found, kwargs={**found.kwargs, "labels": labels})


def _shape(name: str, inputs: Mapping[str, Any], batch: int) -> tuple[int, ...] | None:
    tokens = next((inputs[own] for own in _TOKENS if own in inputs), None)
    if name.endswith(_OF_TOKENS) and tokens is not None:
        return tuple(tokens.shape)
    return (batch,) if name.endswith(_OF_EXAMPLES) else None


_WINDOWS = ("sliding_window", "attention_chunk_size")
_CACHED_TOKENS = 64
_TEXT = {"input_ids", "attention_mask"}


def decode_inputs(
    module: nn.Module, device: str, dtype: torch.dtype | None, *, batch: int, context: int
) -> ExampleInputs:
    """Return the inputs of the call that reads the last token of a context.

    The model itself makes the cache: it reads the tokens before the last one. So the cache is of the kind
    that the model expects, and where a layer keeps a window or a state, it has that size.

    Args:
        module, device, dtype: as for `derive_inputs`. The module's tensors are fakes.
        batch: Sequences at a time.
        context: Tokens that the model attends to, the new one included. The example has fewer where that
            makes no difference: it is longer than every window, so that a cache that keeps one shows it.
    Raises:
        SourceError: the model reads something else than text, or returns no cache.
    """
    context = min(context, _example_context(module))
    before = derive_inputs(module, device, dtype, batch=batch, sequence=context - 1)
    name = type(module).__name__
    if not before.kwargs.keys() <= _TEXT or "input_ids" not in before.kwargs:
        others = ", ".join(sorted(before.kwargs.keys() - _TEXT)) or "no input_ids"
        raise SourceError(
            f"decode inputs of {name} cannot be derived ({others}): write a factory that returns them"
        )
    with torch.no_grad():
        returned = module(**before.kwargs, use_cache=True)
    cache = _cache_of(returned)
    if cache is None:
        raise SourceError(f"{name} does not return a cache, so a decode step cannot be planned")
    parameter, state = cache
    token = before.kwargs["input_ids"][:, :1].clone()
    kwargs = {"input_ids": token}
    if "attention_mask" in before.kwargs:
        kwargs["attention_mask"] = torch.ones(batch, context, dtype=torch.long, device=device)
    return replace(before, kwargs={**kwargs, parameter: state, "use_cache": True})


def _example_context(module: nn.Module) -> int:
    config: Any = module.config
    config = config.get_text_config(decoder=True)
    windows = [getattr(config, name, None) for name in _WINDOWS]
    return _CACHED_TOKENS + max((window for window in windows if isinstance(window, int)), default=0)


def _cache_of(returned: Any) -> tuple[str, Any] | None:
    """Return the name under which a model takes its cache, and the cache."""
    for name in ("past_key_values", "cache_params"):
        state = getattr(returned, name, None)
        if state is not None:
            return name, state
    return None


_INPUTS: Mapping[str, Callable[..., ExampleInputs]] = MappingProxyType(
    {
        "forward": derive_inputs,
        "prefill": derive_inputs,
        "decode": decode_inputs,
        "train": labelled_inputs,
    }
)
