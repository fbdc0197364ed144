"""Symbolic sizes that a recorded call computed or left, and how another call has its own.

Seen on torch 2.13.

Source: `torch/fx/experimental/proxy_tensor.py:set_proxy_slot, track_tensor`; `torch/utils/_thunk.py`.
"""

from __future__ import annotations

import copy
import functools
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from types import CellType, FunctionType
from typing import Any

import torch
from torch.fx import Node, Proxy
from torch.fx.experimental.proxy_tensor import set_proxy_slot
from torch.utils._thunk import Thunk

from .block_recordings import NotReplayable, Recording, is_forced
from .observed_tensors import SymbolicNumber, source_of, thunk_of


@dataclass(frozen=True)
class NewNumber:
    """A symbolic number that the call made and left, and the node, made or not, that computes it."""

    number: Any
    node: Node
    later: Any

    def again(self, tracer: Any, mapped: Callable[[Node], Node]) -> Any:
        proxy = Proxy(mapped(self.node), tracer)
        if self.later is None:
            thunk = Thunk(lambda: proxy)
            thunk.force()
        else:
            thunk = Thunk(_with_cell(self.later, "proxy", proxy))
        number = type(self.number)(copy.copy(self.number.node))
        set_proxy_slot(number, tracer, thunk)
        return number


def new_numbers(
    tracer: Any,
    recording: Recording,
    index: dict[Node, int],
    outside: dict[Node, tuple[str, int]],
    known: dict[int, int],
    leaves: Sequence[Any],
) -> dict[int, NewNumber]:
    left = [value for _, value in changed_symbols(tracer, recording)]
    for leaf in leaves:
        if isinstance(leaf, torch.Tensor):
            left += [*leaf.shape, *leaf.stride(), leaf.storage_offset()]
        elif isinstance(leaf, SymbolicNumber):
            left.append(leaf)
    found: dict[int, NewNumber] = {}
    for number in left:
        if not isinstance(number, SymbolicNumber) or id(number.node) in known:
            continue
        thunk = thunk_of(tracer, number)
        if thunk is None:
            raise NotReplayable("it leaves a size that the trace does not know")
        later = thunk.f
        node = source_of(thunk)
        if node is None:
            raise NotReplayable("a size is computed later")
        if node not in index and node not in outside:
            raise NotReplayable("a size comes from outside")
        found[id(number.node)] = NewNumber(number, node, later)
    return found


def _with_cell(partial: Any, name: str, value: Any) -> Callable[[], Any]:
    function = partial.func
    cells = tuple(
        CellType(value) if free == name else cell
        for free, cell in zip(function.__code__.co_freevars, function.__closure__, strict=True)
    )
    again = FunctionType(
        function.__code__, function.__globals__, function.__name__, function.__defaults__, cells
    )
    return functools.partial(again, *partial.args, **partial.keywords)


def newly_forced(tracer: Any, recording: Recording, index: dict[Node, int]) -> dict[int, int]:
    found = {}
    for at, (number, was_forced) in enumerate(zip(recording.numbers, recording.forced, strict=True)):
        if not was_forced and is_forced(tracer, number):
            if recording.sources[at] is None:
                raise NotReplayable("it needs a size that others are computed for")
            node = thunk_of(tracer, number).r.node
            if node not in index:
                raise NotReplayable("a size comes from outside")
            found[at] = index[node]
    return found


def changed_symbols(tracer: Any, recording: Recording) -> Iterator[tuple[Any, Any]]:
    """Yield the symbols that the trace now knows by another number than before."""
    for symbol, entry in tracer.sympy_expr_tracker.items():
        before = recording.symbols.get(symbol)
        if before is None or before.proxy is not entry.proxy or before.value is not entry.value:
            if thunk_of(tracer, entry.value) is not entry.proxy:
                raise NotReplayable("a size is known twice")
            yield symbol, entry.value
