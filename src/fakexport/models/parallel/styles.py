"""Implement the styles of transformers' parallel plans on plain local tensors.

The styles of transformers use DTensor, which `torch.export` cannot trace (pytorch#175467). The forward
computation is reimplemented here with collectives on plain tensors. Unknown style classes are rejected.
Verified with transformers 5.23.

Source: `transformers/distributed/tensor_parallel.py`, `expert_parallel.py`.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import Any

import torch
from torch import nn

from fakexport._torch.operators.functional_collectives import all_reduce
from fakexport.error import FakexportError
from fakexport.models.sources import SourceError

from .shard import Place, chunk

Forward = Callable[..., Any]


class Unsupported(FakexportError, ValueError):
    """A style does not fit a module, or is a variant that cannot be traced. The message is a clause."""


def install(module: nn.Module, path: str, name: str, style: Any, place: Place) -> None:
    """Replace the forward of a module with the forward of a parallel style.

    Raises:
        SourceError: the style is unknown or does not fit the module.
    """
    is_stock = type(style).__module__.startswith("transformers.")
    make = _FORWARDS.get(type(style).__name__) if is_stock else None
    if make is None:
        raise SourceError(f"--parallel does not support the style {name!r} for the module {path}")
    try:
        forward = make(module, style, place)
    except Unsupported as error:
        raise SourceError(
            f"--parallel does not support the style {name!r} for the module {path}: {error}"
        ) from error
    if forward is not None:
        module.forward = forward


def _unchanged(module: nn.Module, style: Any, place: Place) -> None:
    """Leave the forward unchanged. This is for styles that only shard parameters or only affect gradients."""


def _colwise(module: nn.Module, style: Any, place: Place) -> Forward | None:
    size = _features(module, "out_features")
    _expect_layouts(style, style.input_layouts.is_replicate())
    if style.output_layouts.is_replicate():
        return partial(_gathered, module.forward, place, size)
    _expect_layouts(style, getattr(style.output_layouts, "dim", None) == -1)
    return None


def _gathered(forward: Forward, place: Place, size: int, /, *args: Any, **kwargs: Any) -> torch.Tensor:
    """Gather the last dimension of an output. Each rank computes one shard of it."""
    return place.gather(forward(*args, **kwargs), size)


def _rowwise(module: nn.Module, style: Any, place: Place) -> Forward:
    _features(module, "in_features")
    is_input_whole = style.input_layouts.is_replicate()
    _expect_layouts(style, is_input_whole or getattr(style.input_layouts, "dim", None) == -1)
    _expect_layouts(style, style.output_layouts.is_replicate())
    return partial(_summed_rows, module, module.forward, place, is_input_whole)


def _summed_rows(
    module: nn.Module,
    forward: Forward,
    place: Place,
    is_input_whole: bool,
    value: torch.Tensor,
    /,
    *args: Any,
    **kwargs: Any,
) -> torch.Tensor:
    """Run a layer on a shard of its input's last dimension, sum over all ranks, and then add the bias."""
    shard = place.slice(value) if is_input_whole else value
    bias = module._parameters.get("bias")
    if bias is None:
        return all_reduce(forward(shard, *args, **kwargs))
    module._parameters["bias"] = None
    try:
        return all_reduce(forward(shard, *args, **kwargs)) + bias
    finally:
        module._parameters["bias"] = bias


def _features(module: nn.Module, name: str) -> int:
    size = getattr(module, name, None)
    if not isinstance(size, int):
        raise Unsupported(f"{type(module).__name__} has no {name}")
    return size


def _expect_layouts(style: Any, is_expected: bool) -> None:
    if not is_expected or not style.use_local_output:
        raise Unsupported(
            f"input_layouts={style.input_layouts}, output_layouts={style.output_layouts} and "
            f"use_local_output={style.use_local_output} are not supported together"
        )


def _embedding(module: nn.Module, style: Any, place: Place) -> Forward:
    if not isinstance(module, nn.Embedding):
        raise Unsupported(f"{type(module).__name__} is not an nn.Embedding")
    if not style.use_local_output:
        raise Unsupported("with use_local_output=False, the output is a DTensor")
    if more := [key for key, _ in module.named_parameters(recurse=False) if key != "weight"]:
        raise Unsupported(f"{type(module).__name__} has parameters other than weight: {', '.join(more)}")
    if module.max_norm is not None:
        raise Unsupported("max_norm modifies the weight")
    module.padding_idx = None  # Only affects gradients, and might be outside the shard.
    if style.shard_dim == 0:
        start, end = chunk(module.num_embeddings, place.ranks, place.rank)
        return partial(_vocabulary_range, module.forward, start, end)
    if type(module).forward is not nn.Embedding.forward:
        raise Unsupported(f"{type(module).__name__} overrides forward")
    return partial(_gathered, module.forward, place, module.embedding_dim)


def _vocabulary_range(
    forward: Forward, start: int, end: int, ids: torch.Tensor, /, *args: Any, **kwargs: Any
) -> torch.Tensor:
    """Run an embedding for one rank's range of the vocabulary.

    Each vector that `forward` returns must depend only on the token's own table row.
    """
    is_elsewhere = (ids < start) | (ids >= end)
    own = forward((ids - start).masked_fill(is_elsewhere, 0), *args, **kwargs)
    return all_reduce(own.masked_fill(is_elsewhere.unsqueeze(-1), 0))


def _summed(module: nn.Module, style: Any, place: Place) -> Forward:
    return partial(_sum, module.forward)


def _sum(forward: Forward, /, *args: Any, **kwargs: Any) -> Any:
    result = forward(*args, **kwargs)
    return None if result is None else all_reduce(result)


def _packed(module: nn.Module, style: Any, place: Place) -> None:
    if not style.use_local_output:
        raise Unsupported("with use_local_output=False, the output is a DTensor")


def _divided(module: nn.Module, style: Any, place: Place) -> Forward:
    return partial(_divide, module.forward, place.ranks)


def _divide(forward: Forward, ranks: int, value: torch.Tensor, /, *args: Any, **kwargs: Any) -> Any:
    """Divide the input by the number of ranks, because the results of all ranks are summed later."""
    return forward(value / ranks, *args, **kwargs)


def _dispatched(module: nn.Module, style: Any, place: Place) -> Forward:
    experts = _features(module, "num_experts") * place.size() // place.ranks
    return partial(_own_experts, module.forward, place, experts)


def _own_experts(
    forward: Forward,
    place: Place,
    experts: int,
    hidden: torch.Tensor,
    index: torch.Tensor,
    weights: torch.Tensor,
) -> torch.Tensor:
    """Run the rank's experts. Tokens of others go to a nonexistent local expert, which `forward` ignores."""
    is_elsewhere = (index // experts) != place.rank
    local = torch.where(is_elsewhere, experts, index % experts)
    result = forward(hidden, local, weights.masked_fill(is_elsewhere, 0.0))
    return all_reduce(result).to(hidden.dtype)


_FORWARDS: dict[str, Callable[[nn.Module, Any, Place], Forward | None]] = {
    "ColwiseParallel": _colwise,
    "RowwiseParallel": _rowwise,
    "EmbeddingParallel": _embedding,
    "PackedColwiseParallel": _packed,
    "PackedRowwiseParallel": _unchanged,
    "MoeExpertsParallel": _summed,
    "AllReduceParallel": _summed,
    "MoeIdentityParallel": _divided,
    "MlaKvAProjParallel": _unchanged,
    "ReplicatedWithGradAllReduce": _unchanged,
    "LocalParamsParallel": _unchanged,
    "TensorParallelLayer": _unchanged,
    "EpDispatchExpertsParallel": _dispatched,
    "MoEParamShard": _unchanged,
}
