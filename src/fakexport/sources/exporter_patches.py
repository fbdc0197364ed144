"""Patches of models of transformers while they are traced: those of `transformers.exporters`, and ours."""

from __future__ import annotations

import ast
import importlib
import inspect
import sys
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import ExitStack, contextmanager
from functools import cache
from types import FunctionType
from typing import Any
from weakref import WeakKeyDictionary

import torch
from torch import nn

from fakexport._torch.fp8_products import (
    batched_matmul,
    grouped_matmul,
    matmul,
    on_a_gpu,
    register_fp8_products,
)
from fakexport._torch.patching import Patches

_EXPORTER = "transformers.exporters.exporter_dynamo"
_MODELS = "transformers.models."
_sources: WeakKeyDictionary[Any, str] = WeakKeyDictionary()


def import_exporter() -> None:
    """Import `transformers.exporters`, which must not be imported in a fake mode."""
    importlib.import_module(_EXPORTER)


@contextmanager
def exporter_patches() -> Iterator[None]:
    """Enter `apply_patches("dynamo")` for the model files that are imported.

    Left to itself it imports about 30 of them, for 0.8 s, and parses a method of each, every time. A model
    none of whose files is imported cannot be in the trace.

    Source: transformers 5.17 to 5.23, `exporters/utils.py:apply_patches`. In 5.17 importing the exporter
    imports the models, and the patches are of objects, not of their names.
    """
    utils = importlib.import_module("transformers.exporters.utils")
    quick = {
        (utils, "import_dotted_path"): _of_loaded(getattr(utils, "import_dotted_path", None)),
        (inspect, "getsource"): _source(inspect.getsource),
    }
    with ExitStack() as stack:
        with Patches(quick):
            stack.enter_context(utils.apply_patches("dynamo"))
        yield


def _of_loaded(stock: Any) -> Callable[..., Any]:
    def resolve(path: str, **options: Any) -> Any:
        return stock(path, **options) if _is_loaded(path) else None

    return resolve


def _is_loaded(path: str) -> bool:
    """Return whether the model file of a dotted path is imported, or it is of no model file."""
    return not path.startswith(_MODELS) or ".".join(path.split(".")[:4]) in sys.modules


def _source(stock: Callable[[Any], str]) -> Callable[[Any], str]:
    def source(of: Any) -> str:
        if type(of) is not FunctionType:
            return stock(of)
        if of not in _sources:
            _sources[of] = stock(of)
        return _sources[of]

    return source


@contextmanager
def empty_layers() -> Iterator[None]:
    """Enter a context in which a layer of a cache that grows begins with zeros of the size `[0]`.

    transformers begins it with `torch.tensor([])`, a literal. As a constant of the program, that is another
    one for the keys and for the values of every layer, so that no layer has the nodes of another.

    Source: transformers 5.17 to 5.23, `cache_utils.py:DynamicLayer.lazy_initialization`.
    """
    from transformers.cache_utils import DynamicLayer

    parameters = inspect.signature(DynamicLayer.lazy_initialization).parameters
    if list(parameters) != ["self", "key_states", "value_states"]:
        yield
        return
    with Patches({(DynamicLayer, "lazy_initialization"): _begin}):
        yield


def _begin(layer: Any, key_states: torch.Tensor, value_states: torch.Tensor) -> None:
    layer.dtype, layer.device = key_states.dtype, key_states.device
    layer.keys, layer.values = key_states.new_zeros(0), key_states.new_zeros(0)
    layer.is_initialized = True


_INFORMER = "transformers.models.informer.modeling_informer"
_MAKING = "create_bidirectional_mask"


@contextmanager
def shortened_sequences(module: nn.Module) -> Iterator[None]:
    """Enter a context in which Informer makes no mask where it was given none, as eager does.

    Its encoder halves the sequence after each layer, and passes one mask, of the whole sequence, to all. In
    eager mode there is none, since nothing is masked. In a trace transformers makes a mask of ones, which
    fits the first layer alone.

    Source: transformers 5.17 to 5.23, `masking_utils.py:_ignore_bidirectional_mask_sdpa`.
    """
    models: Any = sys.modules.get(_INFORMER)
    making = getattr(models, _MAKING, None)
    if making is None or all(type(part).__module__ != _INFORMER for part in module.modules()):
        yield
        return

    def made(*, attention_mask: Any, **others: Any) -> Any:
        return None if attention_mask is None else making(attention_mask=attention_mask, **others)

    with Patches({(models, _MAKING): made}):
        yield


_OMDET = "transformers.models.omdet_turbo.modeling_omdet_turbo"
_CACHES = ("language_cache_class", "language_cache_prompt")


@contextmanager
def uncached_texts(module: nn.Module) -> Iterator[None]:
    """Enter a context in which OmDet-Turbo encodes every text, as eager does with texts that are new to it.

    Source: transformers 5.17 to 5.23, `models/omdet_turbo/modeling_omdet_turbo.py:_get_cache_key_at_index`.
    """
    models: Any = sys.modules.get(_OMDET)
    owner: Any = getattr(models, "OmDetTurboPreTrainedModel", None)
    found = [] if owner is None else [part for part in module.modules() if hasattr(part, _CACHES[0])]
    if not found:
        yield
        return
    never_seen = staticmethod(lambda input_ids, attention_mask, index: object())
    kept = [(part, name, getattr(part, name)) for part in found for name in _CACHES]
    with Patches({(owner, "_get_cache_key_at_index"): never_seen}):
        try:
            for part, name, cache in kept:
                setattr(part, name, models.OmDetTurboLRUCache(cache.capacity))
            yield
        finally:
            for part, name, cache in kept:
                setattr(part, name, cache)


_MODULE = "transformers.integrations.finegrained_fp8"


@contextmanager
def fp8_kernels(module: nn.Module) -> Iterator[None]:
    """Enter a context in which fp8 layers of transformers need no kernel of the hub.

    DeepGEMM, which transformers prefers on Hopper GPUs where it is installed, is not taken: what it calls is
    not registered with torch, so no export could hold it.
    """
    layers: Any = sys.modules.get(_MODULE)
    if layers is None or not any(
        isinstance(part, (layers.FP8Linear, layers.FP8Experts)) for part in module.modules()
    ):
        yield
        return
    register_fp8_products()
    kernel = layers.FineGrainedFP8(
        matmul=on_a_gpu(matmul),
        batched_matmul=on_a_gpu(batched_matmul),
        grouped_matmul=on_a_gpu(grouped_matmul),
    )
    with Patches(
        {
            (layers, "load_finegrained_fp8_kernel"): lambda: kernel,
            (layers, "is_deepgemm_loadable"): lambda: False,
        }
    ):
        yield


@contextmanager
def normalized_heads(module: nn.Module) -> Iterator[None]:
    """Enter a context in which the attention that `transformers.exporters` puts instead of chunked vision
    attention normalizes the heads of queries and keys, as eager does.

    The replacement normalizes them where a model has separate projections, and forgets it where one `qkv`
    projects all three: `glm_ocr` and `dots3_note` would export without an error, and compute other values.
    The projection's output is normalized instead. It can go with the last transformers that forgets it.

    Source: transformers 5.17 to 5.23, `exporters/exporter_dynamo.py:_reshaped_vision_attention_forward`.
    """
    with ExitStack() as stack:
        for attention in module.modules() if _are_forgotten() else ():
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
def _are_forgotten() -> bool:
    """Return whether the replacement names `q_norm` nowhere but where there is no `qkv`."""
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
    """Return the tensors that `transformers.exporters` computes for an encoder."""
    from transformers.exporters.utils import precompute_export_inputs

    inputs: dict[str, Any] = dict(known)
    precompute_export_inputs(part, inputs)
    return {n: value for n, value in inputs.items() if isinstance(value, torch.Tensor) and n not in known}


def computed_note(names: Iterable[str], of: str) -> str:
    """Return a clause that tells of such inputs."""
    return (
        f"{', '.join(names)} are inputs of the program: "
        f"transformers.exporters.utils.precompute_export_inputs computes them from {of}"
    )
