"""Which operations belong to one call of one module."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import Any

from .values import Body, Call, Operation, Stored, Value, leaves


@dataclass(eq=False, slots=True)
class Region:
    """Operations that follow each other in the graph and belong to one call of one module.

    A call whose operations do not all follow each other has several regions.

    Args:
        call: The call; None for the whole program.
        items: Operations of the module itself, and regions of the modules that it calls, in order.
        start, end: Index of the first operation, and that after the last one.
        inputs: Values from outside, in the order in which they are first used.
        outputs: Values that are used outside, in the order in which they are computed.
    """

    call: Call | None
    items: list[Operation | Region] = field(default_factory=list)
    start: int = 0
    end: int = 0
    inputs: tuple[Value, ...] = ()
    outputs: tuple[Operation, ...] = ()

    @property
    def path(self) -> str:
        """Path of the module; "" is the root."""
        return self.call.path if self.call else ""

    def inner(self) -> Iterator[Region]:
        """Yield the regions in it, from the innermost out, without itself."""
        for item in self.items:
            if isinstance(item, Region):
                yield from item.inner()
                yield item


def regions_of(body: Body) -> Region:
    """Return the operations of a program as nested regions; the outermost one is the program's."""
    root = Region(None, end=len(body.operations))
    open_regions = [root]
    for operation, calls in zip(body.operations, _known_calls(body.operations), strict=True):
        depth = 0
        while depth < len(calls) and depth + 1 < len(open_regions):
            if open_regions[depth + 1].call != calls[depth]:
                break
            depth += 1
        del open_regions[depth + 1 :]
        for call in calls[depth:]:
            region = Region(call, start=operation.index)
            open_regions[-1].items.append(region)
            open_regions.append(region)
        open_regions[-1].items.append(operation)
        for region in open_regions[1:]:
            region.end = operation.index + 1
    _connect(root, body)
    return root


def _known_calls(operations: list[Operation]) -> list[tuple[Call, ...]]:
    """Return the calls of each operation.

    Torch's own insertions belong to where both of their neighbors do.
    """
    following: list[tuple[Call, ...]] = []
    after: tuple[Call, ...] = ()
    for operation in reversed(operations):
        after = after if operation.calls is None else operation.calls
        following.append(after)
    known: list[tuple[Call, ...]] = []
    before: tuple[Call, ...] = ()
    for operation, after in zip(operations, reversed(following), strict=True):
        before = _common(before, after) if operation.calls is None else operation.calls
        known.append(before)
    return known


def _common(first: tuple[Call, ...], second: tuple[Call, ...]) -> tuple[Call, ...]:
    count = 0
    for one, other in zip(first, second, strict=False):
        if one != other:
            break
        count += 1
    return first[:count]


def used_values(operation: Operation) -> Iterator[Value]:
    """Yield the values that an operation takes; its bodies have only their own parameters."""
    for leaf in leaves((operation.args, operation.kwargs)):
        if isinstance(leaf, Value):
            yield leaf


def _connect(root: Region, body: Body) -> None:
    """Find out what goes into each region and what comes out."""
    last_use: dict[Value, int] = {}
    for operation in body.operations:
        last_use.update(dict.fromkeys(used_values(operation), operation.index))
    last_use.update(_of_result(body.result, len(body.operations)))
    for region in (*root.inner(), root):
        inputs: dict[Value, None] = {}
        for operation in body.operations[region.start : region.end]:
            for value in used_values(operation):
                if not (isinstance(value, Operation) and value.index >= region.start):
                    inputs[value] = None
        region.inputs = tuple(inputs)
        region.outputs = tuple(
            operation
            for operation in body.operations[region.start : region.end]
            if last_use.get(operation, -1) >= region.end
        )


def _of_result(result: Any, index: int) -> dict[Value, int]:
    return {leaf: index for leaf in leaves(result) if isinstance(leaf, (Operation, Stored))}
