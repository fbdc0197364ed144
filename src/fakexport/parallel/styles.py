"""What each style of transformers' plans makes of a module's forward, on local tensors alone.

The styles of transformers run on DTensor, which `torch.export` cannot trace (pytorch#175467). What they
compute without gradients is written here with collectives on plain tensors. A style whose class is not known
is refused. Seen on transformers 5.23.

Source: `transformers/distributed/tensor_parallel.py`, `expert_parallel.py`.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from torch import nn

from fakexport.error import FakexportError
from fakexport.sources import SourceError

from .local_forwards import Divided, Gathered, OwnExperts, Summed, SummedRows, VocabularyRange
from .place import Place
from .shard import chunk

Forward = Callable[..., Any]


class Unsupported(FakexportError, ValueError):
    """A style that does not fit a module, or a variant of a style that is not traced; a clause."""


def install(module: nn.Module, path: str, name: str, style: Any, place: Place) -> None:
    """Replace the forward of a module by that of a style.

    Raises:
        SourceError: The style is not one of those that are known, or does not fit the module.
    """
    is_stock = type(style).__module__.startswith("transformers.")
    make = _FORWARDS.get(type(style).__name__) if is_stock else None
    if make is None:
        raise SourceError(f"--parallel cannot trace the style {name!r} of {path}")
    try:
        forward = make(module, style, place)
    except Unsupported as error:
        raise SourceError(f"--parallel cannot trace the style {name!r} of {path}: {error}") from error
    if forward is not None:
        module.forward = forward


def _unchanged(module: nn.Module, style: Any, place: Place) -> None:
    """Styles that only shard parameters, or only concern gradients."""


def _colwise(module: nn.Module, style: Any, place: Place) -> Forward | None:
    size = _features(module, "out_features")
    _expect_layouts(style, style.input_layouts.is_replicate())
    if style.output_layouts.is_replicate():
        return Gathered(module.forward, place, size)
    _expect_layouts(style, getattr(style.output_layouts, "dim", None) == -1)
    return None


def _rowwise(module: nn.Module, style: Any, place: Place) -> Forward:
    _features(module, "in_features")
    is_input_whole = style.input_layouts.is_replicate()
    _expect_layouts(style, is_input_whole or getattr(style.input_layouts, "dim", None) == -1)
    _expect_layouts(style, style.output_layouts.is_replicate())
    return SummedRows(module, module.forward, place, is_input_whole)


def _features(module: nn.Module, name: str) -> int:
    size = getattr(module, name, None)
    if not isinstance(size, int):
        raise Unsupported(f"{type(module).__name__} has no {name}")
    return size


def _expect_layouts(style: Any, is_expected: bool) -> None:
    if not is_expected or not style.use_local_output:
        raise Unsupported(f"its layouts {style.input_layouts} and {style.output_layouts} are not supported")


def _embedding(module: nn.Module, style: Any, place: Place) -> Forward:
    if not isinstance(module, nn.Embedding) or not style.use_local_output:
        raise Unsupported(f"{type(module).__name__} is not an nn.Embedding")
    if more := [key for key, _ in module.named_parameters(recurse=False) if key != "weight"]:
        raise Unsupported(f"{type(module).__name__} has more than a weight: {', '.join(more)}")
    if module.max_norm is not None:
        raise Unsupported("max_norm changes the weight")
    module.padding_idx = None  # It only concerns gradients, and has to be a row of the part.
    if style.shard_dim == 0:
        return VocabularyRange(module.forward, place, *chunk(module.num_embeddings, place.ranks, place.rank))
    if type(module).forward is not nn.Embedding.forward:
        raise Unsupported(f"{type(module).__name__} has a forward of its own")
    return Gathered(module.forward, place, module.embedding_dim)


def _summed(module: nn.Module, style: Any, place: Place) -> Forward:
    return Summed(module.forward, place)


def _packed(module: nn.Module, style: Any, place: Place) -> None:
    if not style.use_local_output:
        raise Unsupported("its output is a DTensor")


def _divided(module: nn.Module, style: Any, place: Place) -> Forward:
    return Divided(module.forward, place)


def _dispatched(module: nn.Module, style: Any, place: Place) -> Forward:
    experts = _features(module, "num_experts") * place.size() // place.ranks
    return OwnExperts(module.forward, place, experts)


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
