"""Sources from transformers: `hf:MODEL_TYPE[:CLASS]` and `hf:path/to/config.json[:CLASS]`."""

from __future__ import annotations

import copy
import importlib
import warnings
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import torch
from torch import nn
from torch.nn import functional

from fakexport.sources.source import ExampleInputs, Source
from fakexport.sources.source_error import SourceError, first_line
from fakexport.sources.transformers_class import model_class_for, text_part
from fakexport.sources.transformers_config import (
    config_from_file,
    default_config,
    leave_out_quantization,
    set_use_cache,
)
from fakexport.sources.transformers_inputs import derive_inputs

__all__ = ["transformers_source"]


def transformers_source(spec: str, name: str, *, use_cache: bool = False) -> Source:
    """Returns the source of a transformers model with untrained weights. Nothing is downloaded.

    Args:
        spec: The whole spec, for messages.
        name: `MODEL_TYPE[:CLASS]` or `path/to/config.json[:CLASS]`.
        use_cache: Whether language models return a key-value cache.
    Raises:
        SourceError: transformers is missing; as `transformers_config` and `transformers_class` say.
    """
    _check_installed(spec)
    model, _, class_name = name.partition(":")
    config = _config(model)
    left_out = leave_out_quantization(config)
    with warnings.catch_warnings():
        # Model files use what torch deprecates (torch.jit.script), which is no news about the user's model.
        warnings.simplefilter("ignore", DeprecationWarning)
        model_class, assumed = model_class_for(config, class_name or None, f"hf:{model}")
        _import_export_patches()
    dtype = config.dtype
    config = text_part(config, model_class)
    set_use_cache(config, use_cache)

    def construct() -> nn.Module:
        # Not the public AutoModel.from_config, which chooses the class by itself.
        built: nn.Module = model_class._from_config(copy.deepcopy(config), dtype=torch.get_default_dtype())
        return built.eval()

    return Source(
        spec=spec,
        kind="transformers",
        factory=construct,
        example_inputs=derive_inputs,
        tracing=_patched,
        dtype=dtype if isinstance(dtype, torch.dtype) else None,
        assumptions=tuple(sentence for sentence in (_folder_left(model), assumed, left_out) if sentence),
    )


def _check_installed(spec: str) -> None:
    try:
        importlib.import_module("transformers")
    except ModuleNotFoundError as error:
        if error.name == "transformers":
            raise SourceError(f"{spec} needs transformers: pip install 'fakexport[transformers]'") from error
        raise SourceError(f"{spec}: transformers cannot be imported, it misses {error.name}") from error
    except Exception as error:  # it checks the versions of what it depends on
        raise SourceError(f"{spec}: transformers cannot be imported: {first_line(error)}") from error


def _config(model: str) -> Any:
    path = Path(model)
    is_path = "/" in model  # a folder named like a model type is meant as ./llama only
    if model.endswith(".json") or (is_path and path.is_dir()):
        return config_from_file(path)
    if is_path:
        raise SourceError(
            f"nothing is downloaded from the hub: save the config.json of {model} and write hf:PATH"
        )
    return default_config(model)


def _folder_left(model: str) -> str | None:
    """That a folder of a model is not what was taken, since it is called like a model type."""
    if "/" in model or not (Path(model) / "config.json").is_file():
        return None
    return f"hf:{model} is transformers' own configuration of that type: the folder is hf:./{model}"


def _import_export_patches() -> None:
    """Imports what the patches are for: dozens of model files, which must not be imported in a fake mode."""
    exporters = importlib.import_module("transformers.exporters.exporter_dynamo")
    with exporters.apply_patches("dynamo"):
        pass


@contextmanager
def _patched(module: nn.Module, inputs: ExampleInputs) -> Iterator[None]:
    """Applies the parts of `transformers.exporters.DynamoExporter` that leave the program as it is.

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
    with apply_patches("dynamo"), torchs_own, reset_model_state(module):
        yield
