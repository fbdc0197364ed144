"""Sources from transformers: `hf:org/name`, `hf:path/to/config.json`, `hf:MODEL_TYPE`, with `:CLASS`."""

from __future__ import annotations

import copy
import re
import warnings
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import torch
from torch import nn
from torch.nn import functional

from fakexport._torch.operators.real_execution import meta_execution
from fakexport.error import type_and_line
from fakexport.models.hub import HubName
from fakexport.models.sources.generation.generation_calls import GenerationCall, use_own_operators
from fakexport.models.sources.generation.generation_defaults import GENERATION_CONFIG, generation_config_of
from fakexport.models.sources.media_inputs.processor_inputs import Processor
from fakexport.models.sources.quantized.quantization import Quantization
from fakexport.models.sources.source import ExampleInputs, Source
from fakexport.models.sources.source_error import SourceError, import_library, note_default_config
from fakexport.models.sources.transformers.config_limits import nothing_downloaded, within_limits
from fakexport.models.sources.transformers.decode_inputs import labelled_sizes
from fakexport.models.sources.transformers.exporter_patches import import_exporter, trace_patches
from fakexport.models.sources.transformers.hub_model import HubModel, folder_model, hub_model
from fakexport.models.sources.transformers.transformers_class import model_class_for, text_part
from fakexport.models.sources.transformers.transformers_config import (
    default_config,
    published_config,
    set_use_cache,
    take_quantization,
)
from fakexport.models.sources.transformers.workload_inputs import inputs_for
from fakexport.models.sources.workload import FORWARD, Workload


def transformers_source(
    spec: str,
    name: str,
    *,
    use_cache: bool = False,
    workload: Workload = FORWARD,
    returns_hidden_states: bool = False,
    trust_remote_code: bool = False,
) -> Source:
    """Return the source of a transformers model with untrained weights. No weights are downloaded.

    Args:
        name: `MODEL_TYPE[:CLASS]`, `path/to/config.json[:CLASS]`, `path/to/folder[:CLASS]`, or, if there is
            no such folder, the name of a repository on the hub: `org/name[@revision][:CLASS]`.
        use_cache: Whether language models return a key-value cache.
        workload: The kind of call to derive inputs for. Prefill and decode imply a cache.
        returns_hidden_states: Whether the model also returns the results of all of its layers.
        trust_remote_code: Whether to run the repository's own code, if it has any. It is imported by
            `Source.prepare`, because it may query devices.
    Raises:
        SourceError: transformers is not installed. Also as for `model_class_for`, `folder_model` and
            `hub_model`.
    """
    import_library("transformers", spec)
    model, _, class_name = name.partition(":")
    found = _model(model, class_name or None, workload, trust_remote_code=trust_remote_code)
    config, assumed = found.config, None
    is_default = not class_name and not _is_path(model)
    quantization = take_quantization(config)
    if quantization is None and found.packed:
        quantization = Quantization(", ".join(found.packed), None)
    use_cache = use_cache or workload.name in ("prefill", "decode", "chunk")
    chosen: list[tuple[Any, Any]] = []

    def choose(config: Any, model_class: Any) -> Any:
        take_quantization(config)
        config = text_part(config, model_class)
        set_use_cache(config, use_cache)
        if returns_hidden_states:
            config.output_hidden_states = True
        chosen[:] = [(config, model_class)]
        return config

    def prepare() -> None:
        if found.own is not None:
            choose(*found.own.imported())

    with warnings.catch_warnings():
        # Model files use deprecated functions of torch (torch.jit.script), which is irrelevant to the user.
        warnings.simplefilter("ignore", DeprecationWarning)
        if found.own is None:
            model_class, assumed = model_class_for(config, class_name or None, f"hf:{model}")
            config = choose(config, model_class)
        import_exporter()
        if quantization is not None:
            quantization.import_packages()
    dtype = found.config.dtype if isinstance(found.config.dtype, torch.dtype) else found.dtype
    notes = [*found.notes, assumed]
    if quantization is not None and dtype is None:
        notes.append(
            "the config specifies no dtype: unquantized weights are float32 unless --dtype is passed"
        )
    folder = found.folder if workload.is_generated else None
    generation = None if folder is None else generation_config_of(folder)

    def unquantized() -> nn.Module:
        if not chosen:
            prepare()
        config, model_class = chosen[0]
        # The public AutoModel.from_config would choose the class itself.
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
        if found.has_own_head:
            _untie_head(built)
        keep_in_float32(built, torch.get_default_dtype())
        return built.eval()

    def construct() -> nn.Module:
        with within_limits(spec):
            is_packed = quantization is not None and not found.is_unpacked
            built = quantization.built(unquantized) if quantization and is_packed else unquantized()
        if quantization is not None and found.is_unpacked:
            quantization.leave_out(built, _UNPACKED)
        if generation is not None:
            vars(built)["generation_config"] = generation
        return built

    processor = None if found.place is None else Processor(found.place, config.model_type)
    call = GenerationCall(
        workload.name,
        workload.batch,
        workload.context,
        _patched,
        workload.capacity,
        workload.is_cache_kept,
        processor,
    )
    return Source(
        spec=spec,
        kind="transformers",
        factory=construct,
        prepare=prepare,
        example_inputs=call.inputs if workload.is_generated else inputs_for(workload, processor),
        tracing=call.tracing if workload.is_generated else _patched,
        dtype=dtype,
        assumptions=tuple(sentence for sentence in notes if sentence),
        left_out=() if use_cache else ("the model is exported without its KV cache (see --use-cache)",),
        quantization=quantization,
        published=published_config(type(found.config)) if is_default else None,
        settings=found.settings,
    )


_UNPACKED = "none of the weights in the folder is quantized: remove quantization_config from its config.json"


def _untie_head(model: Any) -> None:
    """Give the output embedding its own weight, if the model has an output embedding."""
    if (head := model.get_output_embeddings()) is None:
        return
    head.weight = nn.Parameter(torch.empty_like(head.weight))
    model.all_tied_weights_keys = {
        name: other
        for name, other in model.all_tied_weights_keys.items()
        if model.get_parameter(name) is not head.weight
    }


def raised_anyway(build: Callable[[], Any]) -> str | None:
    """Build a model on the meta device without fakexport. Return the error if this fails, otherwise None."""
    try:
        with meta_execution():
            build()
    except Exception as error:  # any error of a constructor
        return type_and_line(error)
    return None


def _model(model: str, class_name: str | None, workload: Workload, *, trust_remote_code: bool) -> HubModel:
    """Return the model of a spec. A folder or file has priority over a hub repository of the same name."""
    if not _is_path(model):
        config, assumed = default_config(model)
        return HubModel(config, (_library_default(model), *assumed))
    if model.endswith(".json") or Path(model).exists():
        return folder_model(Path(model), class_name, trust_remote_code=trust_remote_code)
    if (name := HubName.parse(model)) is None:
        raise SourceError(f"no such folder: {model}")
    files = (GENERATION_CONFIG,) if workload.is_generated else ()
    return hub_model(name, class_name, files=files, trust_remote_code=trust_remote_code)


def _is_path(model: str) -> bool:
    """Return whether a name is a path or a repository. `./llama` is a folder, `llama` a model type."""
    from transformers import CONFIG_MAPPING

    return "/" in model or model.endswith(".json") or (model not in CONFIG_MAPPING and Path(model).is_dir())


def _library_default(model: str) -> str:
    """Return a note that the default config was used, not a published model or a folder of that name."""
    text = f"hf:{model} is transformers' default configuration of that type, not a published model"
    is_folder = (Path(model) / "config.json").is_file()
    return text + (f"; to use the folder, write hf:./{model}" if is_folder else "")


@contextmanager
def _patched(module: nn.Module, inputs: ExampleInputs) -> Iterator[None]:
    """Apply the parts of `transformers.exporters.DynamoExporter` that do not change the program.

    These parts are omitted: input preparers (they read values, and inputs from `derive_inputs` do not need
    them), the signature patch (the signature already has all of these inputs), output flags (they are already
    set in the config), and the patch of torch's attention. That patch forces the math variant on the CPU. The
    strides of its result differ, so a ViT would have 12 more `contiguous` calls than in a plain export.
    Growing caches start with zeros (`empty_layers`). In a plain export, they start with constants.
    """
    from transformers.exporters.exporter_dynamo import register_cache_pytrees_for_model, reset_model_state
    from transformers.exporters.utils import patch_attribute

    register_cache_pytrees_for_model(module)
    attention = functional.scaled_dot_product_attention
    torchs_own = patch_attribute(functional, "scaled_dot_product_attention", lambda patched: attention)
    with (
        trace_patches(module),
        torchs_own,
        reset_model_state(module),
        nothing_downloaded(),
        labelled_sizes(inputs),
    ):
        yield


def keep_in_float32(module: nn.Module, dtype: torch.dtype) -> None:
    """Convert the weights in a model's `_keep_in_fp32_modules` and `_keep_in_fp32_modules_strict` to float32.

    `from_pretrained` loads these weights in float32, for example the convolutions of Inkling. A model that is
    constructed from its config has one dtype for all weights. Without this conversion, its code would
    therefore see dtypes that never occur with a checkpoint. Constants that are not part of checkpoints are
    not changed.

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
