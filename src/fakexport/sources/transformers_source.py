"""Sources from transformers: `hf:MODEL_TYPE[:CLASS]` and `hf:path/to/config.json[:CLASS]`."""

from __future__ import annotations

import copy
import importlib
import re
import warnings
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from functools import partial
from pathlib import Path
from types import MappingProxyType
from typing import Any

import torch
from torch import nn
from torch.nn import functional

from fakexport.sources.cache_inputs import decode_inputs
from fakexport.sources.config_limits import within_limits
from fakexport.sources.source import ExampleInputs, Source
from fakexport.sources.source_error import SourceError, import_library
from fakexport.sources.training_labels import labelled_inputs
from fakexport.sources.transformers_class import model_class_for, text_part
from fakexport.sources.transformers_config import (
    config_from_file,
    default_config,
    leave_out_quantization,
    set_use_cache,
)
from fakexport.sources.transformers_inputs import derive_inputs
from fakexport.sources.vision_heads import normalized_heads
from fakexport.sources.workload import FORWARD, Workload

HUB_ID = re.compile(r"[A-Za-z0-9][\w.-]*/[A-Za-z0-9][\w.-]*")
"""The name of a model on the hub: `Qwen/Qwen2.5-7B`."""


def transformers_source(
    spec: str, name: str, *, use_cache: bool = False, workload: Workload = FORWARD
) -> Source:
    """Return the source of a transformers model with untrained weights. Nothing is downloaded.

    Args:
        spec: The whole spec, for messages.
        name: `MODEL_TYPE[:CLASS]`, `path/to/config.json[:CLASS]` or `path/to/folder[:CLASS]`.
        use_cache: Whether language models return a key-value cache.
        workload: The call that the example inputs are of; prefill and decode imply the cache.
    Raises:
        SourceError: transformers is missing; as `transformers_config` and `transformers_class` say.
    """
    import_library("transformers", spec)
    model, _, class_name = name.partition(":")
    config = _config(model)
    quantization = leave_out_quantization(config)
    with warnings.catch_warnings():
        # Model files use what torch deprecates (torch.jit.script), which says nothing about the user's model.
        warnings.simplefilter("ignore", DeprecationWarning)
        model_class, assumed = model_class_for(config, class_name or None, f"hf:{model}")
        _import_export_patches()
    dtype = config.dtype
    config = text_part(config, model_class)
    use_cache = use_cache or workload.name in ("prefill", "decode")
    set_use_cache(config, use_cache)

    def construct() -> nn.Module:
        # Not the public AutoModel.from_config, which chooses the class by itself.
        with within_limits(spec):
            built: nn.Module = model_class._from_config(
                copy.deepcopy(config), dtype=torch.get_default_dtype()
            )
        return built.eval()

    return Source(
        spec=spec,
        kind="transformers",
        factory=construct,
        example_inputs=partial(_INPUTS[workload.name], **_sizes(workload)),
        tracing=_patched,
        dtype=dtype if isinstance(dtype, torch.dtype) else None,
        assumptions=tuple(sentence for sentence in (_library_default(model), assumed) if sentence),
        left_out=() if use_cache else ("the model is exported without its KV cache (see --use-cache)",),
        quantization=quantization,
    )


def _sizes(workload: Workload) -> dict[str, int]:
    length = "context" if workload.name == "decode" else "sequence"
    return {"batch": workload.batch, length: workload.context}


_INPUTS: Mapping[str, Callable[..., ExampleInputs]] = MappingProxyType(
    {
        "forward": derive_inputs,
        "prefill": derive_inputs,
        "decode": decode_inputs,
        "train": labelled_inputs,
    }
)


def how_to_download(hub_id: str) -> str:
    """Return how to get the config of a model on the hub, and what to pass then.

    Args:
        hub_id: `Qwen/Qwen2.5-7B`.
    """
    folder = hub_id.rpartition("/")[2]
    return (
        f"fakexport never downloads weights: run `hf download {hub_id} config.json --local-dir {folder}` "
        f"and pass hf:{folder}/config.json"
    )


def _config(model: str) -> Any:
    if not _is_path(model):
        return default_config(model)
    if not model.endswith(".json") and not Path(model).is_dir():
        raise SourceError(how_to_download(model) if HUB_ID.fullmatch(model) else f"no such folder: {model}")
    return config_from_file(Path(model))


def _is_path(model: str) -> bool:
    """Return whether a file or folder is meant: one that is called like a model type is meant as `./llama`
    only.
    """
    from transformers import CONFIG_MAPPING

    return "/" in model or model.endswith(".json") or (model not in CONFIG_MAPPING and Path(model).is_dir())


def _library_default(model: str) -> str | None:
    """Return a note that no published model was taken, and no folder that is called like a model type."""
    if _is_path(model):
        return None
    text = f"hf:{model} is transformers' default configuration of that type, not a published model"
    is_folder = (Path(model) / "config.json").is_file()
    return text + (f"; the folder is hf:./{model}" if is_folder else "")


def _import_export_patches() -> None:
    """Import what the patches are for: dozens of model files, which must not be imported in a fake mode."""
    exporters = importlib.import_module("transformers.exporters.exporter_dynamo")
    with exporters.apply_patches("dynamo"):
        pass


@contextmanager
def _patched(module: nn.Module, inputs: ExampleInputs) -> Iterator[None]:
    """Apply the parts of `transformers.exporters.DynamoExporter` that leave the program as it is.

    Left out are its input preparers (they read values; `derive_inputs` gives only inputs that need none),
    its signature patch (these inputs are all named in the signature), its output flags (they are in the
    config already), and its patch of torch's attention: the mathematical variant that it forces on the
    CPU has other strides, and a ViT then has 12 `contiguous` that its plain export has not.
    """
    from transformers.exporters.exporter_dynamo import (
        apply_patches,
        register_cache_pytrees_for_model,
        reset_model_state,
    )
    from transformers.exporters.utils import patch_attribute

    register_cache_pytrees_for_model(module)
    attention = functional.scaled_dot_product_attention
    torchs_own = patch_attribute(functional, "scaled_dot_product_attention", lambda patched: attention)
    with apply_patches("dynamo"), torchs_own, reset_model_state(module), normalized_heads(module):
        yield
