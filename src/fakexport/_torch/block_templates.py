"""What a recorded call of a module left, so that it can be made once more for another module.

A template is what was recorded while a call was traced: its nodes, with what they take from outside; the
names that were proposed for them; which function of torch made them; the values; and what the call changed in
the tracer. Seen on torch 2.13.

Source: `torch/fx/experimental/proxy_tensor.py:proxy_call, track_tensor, _ModuleStackTracer.create_node`.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from typing import Any, TypeAlias

import torch
from torch.fx import Node
from torch.utils._pytree import tree_flatten

from .block_recordings import LITERALS, MadeNode, NotReplayable, Recording
from .copied_values import CopiedValues, Originals, Returned
from .fake_tensors import storage_identity
from .left_numbers import NewNumber, changed_symbols, new_numbers, newly_forced
from .observed_tensors import (
    SymbolicNumber,
    proxy_of,
    tensor_facts,
    tracing_paused,
    why_not_observable,
)

InnerStack: TypeAlias = tuple[tuple[str, str, str], ...]


@dataclass(frozen=True)
class CopiedNode:
    """One node, with everything that has to be done for each copy already found out."""

    target: Any
    args: tuple[Any, ...]
    kwargs: dict[str, Any]
    name: str | None
    type_expr: Any
    meta: dict[str, Any]
    inner_stack: tuple[tuple[str, str, str], ...]
    function: Any
    count: int
    scope: tuple[str, Any]


@dataclass(frozen=True)
class Template:
    """A recorded call.

    Args:
        nodes: In their order.
        refers: Position of each recorded node.
        outside: Recorded nodes from before the call, with the kind and position of what they are the node of.
        tensors, numbers: What the call could reach.
        forced: Positions of sizes that have a node since the call, with the node's position.
        renewed: Positions of tensors that the trace knows by another node since the call, likewise.
        written: How often it wrote in place to which of the tensors.
        symbols: Symbols that the trace knows by another number since the call.
        known_numbers: Positions of the sizes by the `id` of their symbolic node.
        new_numbers: Sizes that the call made and left.
        functions, last_function, calls: What it changed in the counters of the tracer.
        bases: What it returned views of, and the positions of their nodes.
        outputs, output_spec: What it returned.
    """

    nodes: tuple[CopiedNode, ...]
    refers: dict[Node, int] = field(repr=False)
    outside: dict[Node, tuple[str, int]] = field(repr=False)
    tensors: tuple[torch.Tensor, ...] = field(repr=False)
    numbers: tuple[Any, ...] = field(repr=False)
    forced: dict[int, int]
    renewed: dict[int, int]
    written: dict[int, int]
    symbols: tuple[tuple[Any, Any], ...]
    known_numbers: dict[int, int]
    new_numbers: dict[int, NewNumber]
    functions: dict[Any, int]
    last_function: Any
    calls: dict[str, int]
    bases: tuple[tuple[int, Returned], ...]
    outputs: tuple[tuple[str, Any], ...]
    output_spec: Any
    values: Originals = field(default_factory=Originals, repr=False)


def template_of(recording: Recording, result: Any) -> Template:
    """Return the template of the call that returned `result`.

    Raises:
        NotReplayable: It did something that cannot be done again without running its code.
    """
    recording.check_replayable()
    with tracing_paused():
        return _template(recording, result)


def _template(recording: Recording, result: Any) -> Template:
    tracer = recording.tracer
    index = {made.node: position for position, made in enumerate(recording.made)}
    outside = _outside_nodes(tracer, recording)
    for made in recording.made:
        for taken in made.node.all_input_nodes:
            if taken not in index and taken not in outside:
                raise NotReplayable(f"{made.node.name} takes {taken.name}, which no input leads to")
    functions = {f: n - recording.counts.get(f, 0) for f, n in tracer.torch_fn_counts.items()}
    leaves, spec = tree_flatten(result)
    results = _Results(recording, index)
    outputs = tuple(results.outputs(leaves))
    results.check_counters()
    known: dict[int, int] = {}
    for at, number in enumerate(recording.numbers):
        known.setdefault(id(number.node), at)
    stacks: dict[InnerStack, InnerStack] = {}
    return Template(
        nodes=tuple(_copied(made, recording, tracer, stacks) for made in recording.made),
        refers=index,
        outside=outside,
        tensors=recording.tensors,
        numbers=recording.numbers,
        forced=newly_forced(tracer, recording, index),
        renewed=_renewed(tracer, recording, index),
        written=recording.written(),
        symbols=tuple(changed_symbols(tracer, recording)),
        known_numbers=known,
        new_numbers=new_numbers(tracer, recording, index, outside, known, [*leaves, *results.bases]),
        functions={f: n for f, n in functions.items() if n},
        last_function=tracer.torch_fn_metadata,
        calls=_calls(recording),
        bases=results.places_of_bases(),
        outputs=outputs,
        output_spec=spec,
    )


def _calls(recording: Recording) -> dict[str, int]:
    """Return how often each module inside was called, by its path from the module."""
    counts = recording.tracer.num_calls
    changed = {name: n - recording.calls.get(name, 0) for name, n in counts.items()}
    prefix = f"{recording.path}."
    found = {name[len(prefix) :]: n for name, n in changed.items() if n and name.startswith(prefix)}
    if len(found) < sum(map(bool, changed.values())):
        raise NotReplayable("it calls a module outside of itself")
    return found


def _copied(
    made: MadeNode, recording: Recording, tracer: Any, stacks: dict[InnerStack, InnerStack]
) -> CopiedNode:
    node = made.node
    prefix = recording.path
    inner = []
    for key, (name, kind) in list(node.meta["nn_module_stack"].items())[recording.outer :]:
        if not (key.startswith(f"{prefix}.") and name.startswith(f"{prefix}.")):
            raise NotReplayable("it calls a module outside of itself")
        inner.append((key[len(prefix) :], name[len(prefix) :], kind))
    scope_path, scope_type = tracer.node_name_to_scope[node.name]
    if scope_path != prefix and not scope_path.startswith(f"{prefix}."):
        raise NotReplayable("it calls a module outside of itself")
    if "torch_fn" in node.meta and node.meta["torch_fn"][0] != (
        f"{made.function.__name__}_{made.count + recording.counts.get(made.function, 0)}"
    ):
        raise NotReplayable(f"{node.name} was made by another function")
    stack = stacks.setdefault(tuple(inner), tuple(inner))
    return CopiedNode(
        node.target,
        node.args,
        node.kwargs,
        made.name,
        node.type,
        dict(node.meta),
        stack,
        made.function,
        made.count,
        (scope_path[len(prefix) :], scope_type),
    )


def _outside_nodes(tracer: Any, recording: Recording) -> dict[Node, tuple[str, int]]:
    found: dict[Node, tuple[str, int]] = {}
    made = {one.node for one in recording.made}
    for at, source in enumerate(recording.sources):
        if source is not None:
            found.setdefault(source, ("number", at))
    for at, node in enumerate(recording.entry):
        if node is not None and node not in made:
            found.setdefault(node, ("tensor", at))
    return found


def _renewed(tracer: Any, recording: Recording, index: dict[Node, int]) -> dict[int, int]:
    """Return the tensors that an operator returned as they are: `x.to(x.dtype)` makes `x` its result."""
    found = {}
    for at, (tensor, before) in enumerate(zip(recording.tensors, recording.entry, strict=True)):
        proxy = proxy_of(tracer, tensor)
        if proxy is not None and proxy.proxy.node is not before:
            if proxy.constant is not None or proxy.proxy.node not in index:
                raise NotReplayable("it changes a tensor from outside")
            found[at] = index[proxy.proxy.node]
    return found


class _Results:
    """How what a call returned is made; what is met twice is made once."""

    def __init__(self, recording: Recording, index: dict[Node, int]) -> None:
        self._recording = recording
        self._index = index
        self.bases: list[torch.Tensor] = []
        self._tensors: list[tuple[torch.Tensor, int, Returned]] = []

    def outputs(self, leaves: Sequence[Any]) -> Iterator[tuple[str, Any]]:
        places: dict[int, int] = {}
        for at, leaf in enumerate(leaves):
            first = places.setdefault(id(leaf), at) if isinstance(leaf, torch.Tensor) else at
            yield self._output(leaf) if first == at else ("again", first)

    def check_counters(self) -> None:
        """Raise unless each tensor that was made counts its changes by itself, as a copy does.

        Views count with their base, which is copied so. An alias that autograd knows no view of does too.
        """
        roots = [tensor for tensor, _, returned in self._tensors if returned.base is None]
        for at, root in enumerate(roots):
            if any(_count_together(root, other) for other in (*roots[:at], *self._recording.tensors)):
                raise NotReplayable("it returns a tensor that counts its changes with another one")

    def _output(self, leaf: Any) -> tuple[str, Any]:
        if isinstance(leaf, torch.Tensor):
            known = self._recording.tensors
            at = next((at for at, tensor in enumerate(known) if tensor is leaf), None)
            return ("made", self._made(leaf)) if at is None else ("tensor", at)
        if isinstance(leaf, SymbolicNumber):
            return "number", leaf
        if isinstance(leaf, LITERALS):
            return "literal", leaf
        raise NotReplayable(f"it returns a {type(leaf).__name__}")

    def _made(self, tensor: Any) -> tuple[int, Returned]:
        for known, at, returned in self._tensors:
            if known is tensor:
                return at, returned
        at, returned = self._newly_made(tensor)
        self._tensors.append((tensor, at, returned))
        return at, returned

    def _newly_made(self, tensor: Any) -> tuple[int, Returned]:
        reason = why_not_observable(tensor)
        proxy = proxy_of(self._recording.tracer, tensor)
        if reason is not None or proxy is None or proxy.constant is not None:
            raise NotReplayable(f"it returns {reason or 'a tensor that is not the value of a node'}")
        if proxy.proxy.node not in self._index:
            raise NotReplayable("it returns a tensor from outside")
        if tensor.is_leaf and tensor.requires_grad:
            raise NotReplayable("it returns a leaf of autograd")
        returned = Returned.of(tensor, self._base(tensor) if tensor._is_view() else None)
        copy = CopiedValues({}).tensor(returned, lambda number: number)
        if _view_facts(copy) != _view_facts(tensor):
            raise NotReplayable("it returns a tensor of which no copy can be made")
        return self._index[proxy.proxy.node], returned

    def _base(self, view: Any) -> Returned:
        base = view._base
        if any(base is tensor for tensor in self._recording.tensors):
            raise NotReplayable("it returns a view of what it was given")
        if base.dtype is not view.dtype:
            raise NotReplayable("it returns a view that reads its memory as another dtype")
        _, returned = self._made(base)
        if all(base is not known for known in self.bases):
            self.bases.append(base)
        return returned

    def places_of_bases(self) -> tuple[tuple[int, Returned], ...]:
        """Return the position of the node of each base, and what it was."""
        return tuple(map(self._made, self.bases))


def _count_together(a: torch.Tensor, b: torch.Tensor) -> bool:
    """Return whether changes of one tensor count for the other. There is only `_version` to tell."""
    if storage_identity(a) != storage_identity(b) or a.is_inference() or b.is_inference():
        return False
    before, other = a._version, b._version
    torch._C._autograd._unsafe_set_version_counter((a,), (before + 1,))
    try:
        return b._version != other
    finally:
        torch._C._autograd._unsafe_set_version_counter((a,), (before,))


def _view_facts(tensor: torch.Tensor) -> tuple[Any, ...]:
    if not tensor._is_view():
        return tensor_facts(tensor)
    base: Any = tensor._base
    return *tensor_facts(tensor), *tensor_facts(base), torch._C._autograd._get_creation_meta(tensor)
