"""Whether two recorded calls left the same, as `template_replay` would make it. Seen on torch 2.13."""

from __future__ import annotations

from collections.abc import Iterator
from itertools import zip_longest
from typing import Any

import torch
from torch.fx import Node
from torch.fx.node import map_arg

from .block_templates import CopiedNode, Template
from .copied_values import Returned
from .fake_tensors import storage_identity
from .observed_tensors import SymbolicNumber, tracing_paused


def first_template_difference(a: Template, b: Template) -> str | None:
    """Return what a replay of one template would make differently from the other's call; None if nothing."""
    with tracing_paused():
        for one, other in zip_longest(_parts(a), _parts(b)):
            if one != other:
                return f"{one} and {other}"
    return None


def _parts(template: Template) -> Iterator[Any]:
    """Yield everything that a replay is made from, in terms of what the call took and made."""
    told = _Told(template)
    for node in template.nodes:
        yield from told.node(node)
    yield "sizes with a node", template.forced, template.renewed
    yield "writes", template.written
    yield "symbols", [(str(symbol), told.number(value)) for symbol, value in template.symbols]
    for new in template.new_numbers.values():
        yield "size", str(new.number.node.expr), told.place(new.node), new.later is None
    yield "functions", template.functions, template.last_function, template.calls
    yield "bases", [(at, told.returned(base)) for at, base in template.bases]
    yield "results", [told.output(how, what) for how, what in template.outputs], template.output_spec


class _Told:
    def __init__(self, template: Template) -> None:
        self._template = template
        self._memories: dict[int, int] = {}
        for tensor in template.tensors:
            self._memory(tensor)

    def node(self, node: CopiedNode) -> Iterator[Any]:
        yield node.target, repr(self._mapped(node.args)), repr(self._mapped(node.kwargs))
        yield node.name, node.type_expr, node.inner_stack, node.function, node.count, node.scope
        for key, value in node.meta.items():
            if key == "val":
                yield key, self._value(value)
            elif key == "torch_fn":  # The number is of the place; see `CopiedNode.count`.
                yield key, value[1]
            elif key != "nn_module_stack":
                yield key, repr(value)

    def place(self, node: Node) -> tuple[Any, ...]:
        at = self._template.refers.get(node)
        return self._template.outside[node] if at is None else ("node", at)

    def number(self, number: Any) -> Any:
        if not isinstance(number, SymbolicNumber):
            return number
        at = self._template.known_numbers.get(id(number.node))
        return type(number).__name__, str(number.node.expr), at

    def output(self, how: str, what: Any) -> Any:
        if how == "made":
            at, returned = what
            return how, at, self.returned(returned)
        return how, repr(what) if how == "literal" else self.number(what)

    def returned(self, returned: Returned) -> Any:
        like = returned.like
        numbers = [self.number(n) for n in (*like.shape, *like.stride(), like.storage_offset())]
        base = None if returned.base is None else self.returned(returned.base)
        facts = returned.version, returned.requires_grad, returned.creation, numbers
        return self._value(like), facts, base

    def _mapped(self, args: Any) -> Any:
        return map_arg(args, lambda node: _Name(str(self.place(node))))

    def _value(self, value: Any) -> Any:
        if isinstance(value, torch.Tensor):
            sizes = [str(number) for number in (*value.shape, *value.stride(), value.storage_offset())]
            # Not its version, which may have changed since.
            facts = (value.dtype, str(value.device), value.requires_grad, value.is_conj(), value.is_neg())
            return facts, sizes, self._memory(value)
        if isinstance(value, (tuple, list)):
            return type(value), [self._value(item) for item in value]
        return type(value), str(value)

    def _memory(self, tensor: torch.Tensor) -> int:
        return self._memories.setdefault(storage_identity(tensor), len(self._memories))


class _Name(str):
    """A node, as an argument, that no text equals."""

    def __repr__(self) -> str:
        return f"<{self}>"
