"""Provide the values of constants that Python reads during a trace, if the model's code determines them."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager, nullcontext
from dataclasses import dataclass
from typing import Any

import torch
from torch import nn
from torch.fx import Node

from fakexport._torch.emulation.fake_tensors import FakeTensor, storage_identity
from fakexport._torch.operators.constant_operators import NotExact, check_kind
from fakexport._torch.tracing.constant_questions import (
    ConstantGraph,
    ListedConstants,
    Reading,
    constant_questions,
)
from fakexport.emulation.history import Provenance
from fakexport.models.sources import patched_forward

from .constants import value_or_reason


@dataclass(frozen=True)
class _Held:
    """A constant of the module: its name, the original tensor, and the tensor in the trace."""

    name: str
    original: FakeTensor
    traced: torch.Tensor


class ConstantAnswers:
    """The values of a module's constants, for one trace.

    A question is a Python read of a tensor's value, such as `bool(t)` or `t.item()`, during the trace.
    Constants are non-persistent buffers and plain tensor attributes. Questions that depend on parameters and
    persistent buffers are not answered, because their values come from a checkpoint. Questions about a
    constant that `forward` modifies are not answered either, because the answer would differ in the next
    call.

    Args:
        module: The module before the trace, with its own fake tensors.
        is_answering: Whether to answer questions. If False, only record in `read` which constants were read.
        changed: Constants that `forward` is known to modify.
    """

    def __init__(
        self, module: nn.Module, *, is_answering: bool, changed: frozenset[str] = frozenset()
    ) -> None:
        self.read: dict[str, None] = {}
        self.found_changed: set[str] = set()
        self._module = module
        self._is_answering = is_answering
        self._originals = {n: t for n, t in _constants(module) if n not in changed}
        self._state = module.state_dict(keep_vars=True) if self._originals else {}
        self._parameters = dict(module.named_parameters()) if self._originals else {}
        self._held: tuple[_Held, ...] = ()
        self._provenance: Provenance | None = None
        self._values: dict[str, torch.Tensor | None] = {}
        self._graph: ConstantGraph | None = None

    @contextmanager
    def given(self) -> Iterator[None]:
        """Enter a context that answers the questions of a trace. Enter `plain_forward` first."""
        if not self._originals:
            yield
            return
        original: Callable[..., Any] = self._module.forward

        def forward(*args: Any, **kwargs: Any) -> Any:
            self._begin()
            try:
                return original(*args, **kwargs)
            finally:
                self._end()

        forward.__wrapped__ = original  # type: ignore[attr-defined]
        lists = ListedConstants(self._answer) if self._is_answering else nullcontext()
        with patched_forward(self._module, forward), constant_questions(self._answer), lists:
            yield

    def _begin(self) -> None:
        traced = dict(_constants(self._module))
        self._held = tuple(_Held(n, t, traced[n]) for n, t in self._originals.items() if n in traced)
        self._graph = None

    def _end(self) -> None:
        if self._graph is None:
            return
        stale = self._stale(self._graph)
        after = dict(_constants(self._module))
        for held in self._held:
            if held.name in self.read and (held in stale or after.get(held.name) is not held.traced):
                self.found_changed.add(held.name)

    def _stale(self, graph: ConstantGraph) -> list[_Held]:
        """Return the constants that were written, directly or through a tensor that shares their memory."""
        written = graph.written()
        memories = {
            storage_identity(held.original) for held in self._held if storage_identity(held.traced) in written
        }
        return [held for held in self._held if storage_identity(held.original) in memories]

    def _answer(self, graph: ConstantGraph, tensor: FakeTensor, reading: Reading) -> Any:
        stale = self._stale(graph)
        used: dict[str, None] = {}

        def leaf(node: Node) -> torch.Tensor:
            return self._leaf(graph, node, stale, used)

        try:
            number = graph.number(tensor, leaf, reading=reading)
        except NotExact:
            return None
        if not used:
            return None  # The number depends only on literals, which torch evaluates itself.
        self._graph = graph
        self.read |= used
        return number if self._is_answering else None

    def _leaf(
        self, graph: ConstantGraph, node: Node, stale: list[_Held], used: dict[str, None]
    ) -> torch.Tensor:
        literal = graph.literal(node)
        if literal is not None and not isinstance(literal, FakeTensor):
            check_kind(literal)
            return literal
        for held in self._held:
            if held.traced is literal or (literal is None and graph.node_of(held.traced) is node):
                is_same_memory = graph.memory(node) == storage_identity(held.traced)
                value = self._value(held) if is_same_memory and held not in stale else None
                if value is None:
                    break
                used[held.name] = None
                return value
        raise NotExact(f"{node.name} is not a constant with a known value")

    def _value(self, held: _Held) -> torch.Tensor | None:
        if held.name not in self._values:
            self._provenance = self._provenance or self._new_provenance()
            found = value_or_reason(held.original, self._provenance)
            self._values[held.name] = found if isinstance(found, torch.Tensor) else None
        value = self._values[held.name]
        if value is not None:
            check_kind(value)
        return value

    def _new_provenance(self) -> Provenance:
        buffers = {n: t for n, t in self._state.items() if n not in self._parameters}
        return Provenance(self._parameters, {n: t for n, t in buffers.items() if isinstance(t, torch.Tensor)})


def _constants(module: nn.Module) -> Iterator[tuple[str, FakeTensor]]:
    for path, part in module.named_modules():
        prefix = f"{path}." if path else ""
        buffers = {n: t for n, t in part._buffers.items() if n in part._non_persistent_buffers_set}
        for name, tensor in {**vars(part), **buffers}.items():
            if type(tensor) is FakeTensor:
                yield prefix + name, tensor
