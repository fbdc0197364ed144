"""Patches for transformers models during a trace, from `transformers.exporters` and from fakexport."""

from __future__ import annotations

import ast
import importlib
import inspect
import sys
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import ExitStack, contextmanager
from functools import cache
from typing import Any

import torch
from torch import nn

from fakexport._torch.kernels.fp8_products import (
    batched_matmul,
    grouped_matmul,
    matmul,
    on_a_gpu,
    register_fp8_products,
)
from fakexport._torch.patching import Patches
from fakexport.models.sources.quantized.fbgemm_layers import fbgemm_kernels

Replaced = dict[tuple[Any, str], Any]
"""Arguments of `Patches`: empty if the patch does not apply to a model."""

_EXPORTER = "transformers.exporters.exporter_dynamo"
_MODELS = "transformers.models."


def import_exporter() -> None:
    """Import `transformers.exporters`. It must not be imported in a fake mode."""
    importlib.import_module(_EXPORTER)


@contextmanager
def exporter_patches() -> Iterator[None]:
    """Enter a context with the patches of `apply_patches("dynamo")` for imported model files.

    By default, every call of `apply_patches` imports about 30 model files (0.8 s). Models whose files are not
    imported cannot be part of the trace, so they need no patches.

    Source: transformers 5.17 to 5.23, `exporters/utils.py:apply_patches`. In 5.17, importing the exporter
    also imports the models, and the patch list contains objects instead of names.
    """
    utils = importlib.import_module("transformers.exporters.utils")
    quick = {(utils, "import_dotted_path"): _of_loaded(getattr(utils, "import_dotted_path", None))}
    with ExitStack() as stack:
        with Patches(quick):
            stack.enter_context(utils.apply_patches("dynamo"))
        yield


def _of_loaded(stock: Any) -> Callable[..., Any]:
    def resolve(path: str, **options: Any) -> Any:
        return stock(path, **options) if _is_loaded(path) else None

    return resolve


def _is_loaded(path: str) -> bool:
    """Return False only if a dotted path refers to a model file that has not been imported."""
    return not path.startswith(_MODELS) or ".".join(path.split(".")[:4]) in sys.modules


@contextmanager
def trace_patches(module: nn.Module) -> Iterator[None]:
    """Enter a context that applies all patches for tracing a model: fakexport's own and the exporter's."""
    with ExitStack() as stack:
        stack.enter_context(exporter_patches())
        stack.enter_context(normalized_heads(module))
        stack.enter_context(Patches({**empty_layers(), **_informer(module), **_omdet(module)}))
        stack.enter_context(kernels_of_hub(module))
        for part, name in _caches_of_texts(module):
            cache = getattr(part, name)
            stack.callback(setattr, part, name, cache)
            setattr(part, name, type(cache)(cache.capacity))
        yield


def kernels_of_hub(module: nn.Module) -> Patches:
    """Return a context in which quantized layers call operators instead of kernels from the hub."""
    return Patches({**_fp8(module), **fbgemm_kernels(module)})


def empty_layers() -> Replaced:
    """Make each layer of a growing cache start as `zeros([0])`.

    transformers uses the literal `torch.tensor([])`. In the program, each such literal would become a
    separate constant, so no two layers would have identical nodes.

    Source: transformers 5.17 to 5.24, `cache_utils.py:DynamicLayer.lazy_initialization`. In 5.24, a layer
    does not store its dtype.
    """
    from transformers.cache_utils import DynamicLayer

    parameters = inspect.signature(DynamicLayer.lazy_initialization).parameters
    if list(parameters) != ["self", "key_states", "value_states"]:
        return {}
    has_dtype = "self.dtype" in inspect.getsource(DynamicLayer.lazy_initialization)

    def begin(layer: Any, key_states: torch.Tensor, value_states: torch.Tensor) -> None:
        layer.device, layer.is_initialized = key_states.device, True
        if has_dtype:
            layer.dtype = key_states.dtype
        layer.keys = key_states.new_zeros(0)
        layer.values = key_states.new_zeros(0) if has_dtype else value_states.new_zeros(0)

    return {(DynamicLayer, "lazy_initialization"): begin}


_INFORMER = "transformers.models.informer.modeling_informer"
_MAKING = "create_bidirectional_mask"


def _informer(module: nn.Module) -> Replaced:
    """Prevent Informer from creating a mask if the caller passes none, as in eager mode.

    Informer's encoder halves the sequence after each layer, but passes one mask for the whole sequence to all
    layers. Eager mode creates no mask if nothing is masked. A trace would create a mask of ones, whose size
    is correct only for the first layer.

    Source: transformers 5.17 to 5.23, `masking_utils.py:_ignore_bidirectional_mask_sdpa`.
    """
    models: Any = sys.modules.get(_INFORMER)
    making = getattr(models, _MAKING, None)
    if making is None or all(type(part).__module__ != _INFORMER for part in module.modules()):
        return {}

    def made(*, attention_mask: Any, **others: Any) -> Any:
        return None if attention_mask is None else making(attention_mask=attention_mask, **others)

    return {(models, _MAKING): made}


_OMDET = "transformers.models.omdet_turbo.modeling_omdet_turbo"
_CACHES = ("language_cache_class", "language_cache_prompt")


def _omdet(module: nn.Module) -> Replaced:
    """Make OmDet-Turbo encode every text instead of reading its cache of encoded texts.

    Source: transformers 5.17 to 5.23, `models/omdet_turbo/modeling_omdet_turbo.py:_get_cache_key_at_index`.
    """
    owner: Any = getattr(sys.modules.get(_OMDET), "OmDetTurboPreTrainedModel", None)
    if owner is None or not any(_caches_of_texts(module)):
        return {}
    never_seen = staticmethod(lambda input_ids, attention_mask, index: object())
    return {(owner, "_get_cache_key_at_index"): never_seen}


def _caches_of_texts(module: nn.Module) -> Iterator[tuple[Any, str]]:
    if _OMDET in sys.modules:
        for part in module.modules():
            yield from ((part, name) for name in _CACHES if hasattr(part, name))


_FP8 = "transformers.integrations.finegrained_fp8"


def _fp8(module: nn.Module) -> Replaced:
    """Make transformers' fp8 layers work without a kernel from the hub.

    On Hopper GPUs, transformers prefers DeepGEMM if it is installed. It is not used here, because its
    functions are not torch operators and cannot be exported.
    """
    layers: Any = sys.modules.get(_FP8)
    if layers is None or not any(
        isinstance(part, (layers.FP8Linear, layers.FP8Experts)) for part in module.modules()
    ):
        return {}
    register_fp8_products()
    kernel = layers.FineGrainedFP8(
        matmul=on_a_gpu(matmul),
        batched_matmul=on_a_gpu(batched_matmul),
        grouped_matmul=on_a_gpu(grouped_matmul),
    )
    return {
        (layers, "load_finegrained_fp8_kernel"): lambda: kernel,
        (layers, "is_deepgemm_loadable"): lambda: False,
    }


@contextmanager
def normalized_heads(module: nn.Module) -> Iterator[None]:
    """Enter a context that fixes a bug in `transformers.exporters`.

    Its replacement for chunked vision attention normalizes the heads of separate projections, but not of a
    combined `qkv` projection. Without this fix, `glm_ocr` and `dots3_note` export without an error, but the
    programs return different values than eager mode. The fix normalizes the output of the projection. Remove
    it when no supported transformers version has the bug.

    Source: transformers 5.17 to 5.23, `exporters/exporter_dynamo.py:_reshaped_vision_attention_forward`.
    """
    with ExitStack() as stack:
        for attention in module.modules() if _has_norm_bug() else ():
            projection = getattr(attention, "qkv", None)
            if _is_replaced(attention) and isinstance(projection, nn.Module) and hasattr(attention, "q_norm"):
                stack.callback(projection.register_forward_hook(_normalizing(attention)).remove)
        yield


def _is_replaced(attention: nn.Module) -> bool:
    return "_patch_chunked_vision_attention" in type(attention).forward.__qualname__


def _normalizing(attention: Any) -> Callable[[nn.Module, Any, torch.Tensor], torch.Tensor]:
    def hook(projection: nn.Module, args: Any, projected: torch.Tensor) -> torch.Tensor:
        heads = projected.reshape(projected.shape[0], 3, attention.num_heads, -1)
        query, key, value = heads.unbind(1)
        normalized = torch.stack([attention.q_norm(query), attention.k_norm(key), value], 1)
        return normalized.reshape(projected.shape)

    return hook


@cache
def _has_norm_bug() -> bool:
    """Return whether the replacement has the bug: it applies `q_norm` only if the module has no `qkv`."""
    from transformers.exporters import exporter_dynamo

    replacement = getattr(exporter_dynamo, "_reshaped_vision_attention_forward", None)
    if replacement is None:
        return False
    tree = ast.parse(inspect.getsource(replacement))
    everywhere = _uses_of_norm(tree)
    without_qkv = sum(
        sum(map(_uses_of_norm, branch.orelse))
        for branch in ast.walk(tree)
        if isinstance(branch, ast.If) and ast.unparse(branch.test) == "hasattr(self, 'qkv')"
    )
    return everywhere == without_qkv


def _uses_of_norm(tree: ast.AST) -> int:
    return sum(isinstance(node, ast.Attribute) and node.attr == "q_norm" for node in ast.walk(tree))


def computed_inputs(part: nn.Module, known: Mapping[str, torch.Tensor]) -> dict[str, torch.Tensor]:
    """Return the tensors that `transformers.exporters` precomputes for an encoder."""
    from transformers.exporters.utils import precompute_export_inputs

    inputs: dict[str, Any] = dict(known)
    precompute_export_inputs(part, inputs)
    return {n: value for n, value in inputs.items() if isinstance(value, torch.Tensor) and n not in known}


def computed_note(names: Iterable[str], of: str) -> str:
    """Return a clause for the report about inputs that were precomputed from another input."""
    return (
        f"{', '.join(names)} are inputs of the program: "
        f"transformers.exporters.utils.precompute_export_inputs computes them from {of}"
    )
