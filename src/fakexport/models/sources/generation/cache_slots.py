"""Convert a transformers cache to tensors by name, and back.

If the cache object itself were an input, loading the program would require transformers, and the meaning of
each tensor would be unclear. The names are paths within the cache: `layers_0_keys`.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Any

import torch

from fakexport._torch.pytree import tree_flatten, tree_unflatten
from fakexport.models.sources.source_error import SourceError

_GROWING = ("keys", "values")
_ATTENDED = re.compile(r"(?P<layers>.+)_(?:keys|values)")
_CROSS_ATTENTION = "cross_attention_cache_"
_NUMBERS = re.compile(r"\d+")


@dataclass(frozen=True)
class CacheLayout:
    """The parts of a cache that are not tensors: classes, flags and numbers.

    Args:
        spec: torch's pytree structure of the cache.
        names: The name of each tensor, in the order of the structure. None for a tensor that does not change
            in any call.
        numbers: The flags and numbers of the cache, by path.
    """

    spec: Any
    names: tuple[str | None, ...]
    numbers: Mapping[str, Any]

    @classmethod
    def of(cls, cache: Any) -> tuple[CacheLayout, dict[str, torch.Tensor]]:
        """Return the layout of a cache, and its tensors by name.

        Raises:
            SourceError: torch cannot flatten the cache.
        """
        leaves, spec = tree_flatten(cache)
        if not isinstance(spec.context, dict):
            raise SourceError(f"a {type(cache).__name__} cannot be an input of an exported program")
        places: dict[int, str] = {}
        numbers: dict[str, Any] = {}
        for path, value in _walk(spec.context, ()):
            if isinstance(value, dict):
                places[value["i"]] = "_".join(path)
            else:
                numbers[".".join(path)] = value
        # A private tensor is a copy of a number in the config, such as the window size. A leaf without a path
        # is a size, such as the batch size.
        found = (places.get(index) for index in range(len(leaves)))
        names = tuple(None if name is None or "__" in name else name for name in found)
        tensors = {
            name: leaf
            for name, leaf in zip(names, leaves, strict=True)
            if name is not None and isinstance(leaf, torch.Tensor)
        }
        return cls(spec, names, numbers), tensors

    def filled(self, tensors: Mapping[str, torch.Tensor]) -> Any:
        """Build a cache from these tensors. Tensors that the model writes to in place are copied."""
        some = next(iter(tensors.values()))
        leaves = [
            some.new_zeros(()) if name is None else _own(name, tensors[name], self.is_static)
            for name in self.names
        ]
        return tree_unflatten(leaves, self.spec)

    @property
    def is_static(self) -> bool:
        """Whether the cache is allocated in full at the start and then written in place."""
        return any(path.endswith(".max_cache_len") for path in self.numbers)

    def refuse_counting(self, after: CacheLayout, model: str) -> None:
        """Reject a cache that counts tokens in Python: the program would always use the example's count."""
        for path, value in self.numbers.items():
            if after.numbers.get(path) != value:
                raise SourceError(
                    f"the cache of {model} stores {path} as a Python number ({value} before a call, "
                    f"{after.numbers.get(path)} after it), which an exported program cannot change"
                    + (": remove --max-cache-len" if self.is_static else "")
                )


def _own(name: str, tensor: torch.Tensor, is_static: bool) -> torch.Tensor:
    return tensor if name.endswith(_GROWING) and not is_static else tensor.clone()


def _walk(context: Any, path: tuple[str, ...]) -> Iterator[tuple[tuple[str, ...], Any]]:
    """Yield each leaf of the cache's pytree: tensors, flags and numbers."""
    match context:
        case {"_t": "tensor"}:
            yield path, context
        case {"_t": "items" | "seq" | "map" | "obj"}:
            for key in ("s", "v"):
                if key in context:
                    yield from _walk(context[key], path)
        case {"_t": _}:
            return
        case dict():
            for name, value in context.items():
                yield from _walk(value, (*path, str(name)))
        case list():
            for index, value in enumerate(context):
                yield from _walk(value, (*path, str(index)))
        case bool() | int() | float() | None:
            yield path, context


def is_attended(name: str) -> bool:
    """Return whether a tensor of a cache contains the keys or the values of a layer."""
    return _ATTENDED.fullmatch(name) is not None


def cache_sizes(
    before: Mapping[str, torch.Tensor],
    after: Mapping[str, torch.Tensor],
    *,
    is_batch_dynamic: bool,
    is_static: bool = False,
    new: int = 1,
) -> dict[str, tuple[str | None, ...]]:
    """Return a label for each dimension of the keys and values; equal labels mean equal sizes.

    Layers that grow by the new tokens have the same length, so their keys and values share a label. The
    encoder's keys and values do not grow. Their length has a label if it is the same in all layers. A
    dimension without a label is constant. Cache tensors other than keys and values are not included.

    Args:
        before: The tensors of a cache by name, `[batch, heads, length, width]` for keys and values.
        after: The same tensors after `new` more tokens.
        is_static: Whether the layers have their full length from the start.
    """
    found: dict[str, tuple[str | None, ...]] = {}
    encoded = {tensor.shape[2:3] for name, tensor in before.items() if _CROSS_ATTENTION in name}
    for name, tensor in before.items():
        match = _ATTENDED.fullmatch(name)
        if match is None or tensor.dim() != 4:
            continue
        is_encoded = _CROSS_ATTENTION in name
        is_constant = is_static and not is_encoded
        grown = tuple(int(b) - int(a) for a, b in zip(tensor.shape, after[name].shape, strict=True))
        if grown != ((0, 0, 0, 0) if is_constant or is_encoded else (0, 0, new, 0)):
            continue
        if is_encoded and len(encoded) > 1:
            continue
        group = _NUMBERS.sub("", match["layers"])
        batch = f"{group}, batch" if is_batch_dynamic else None
        length = f"{group}, {tensor.shape[2]} tokens" if not is_constant else None
        found[name] = (batch, None, length, None)
    return found
