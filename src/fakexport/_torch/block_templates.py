"""What a recorded call of a module left, so that it can be made once more for another module.

A template is what was recorded while a call was traced: its nodes, with what they take from outside; the
names that were proposed for them; which function of torch made them; the values; and what the call changed in
the tracer. Seen on torch 2.13.

Source: `torch/fx/experimental/proxy_tensor.py:proxy_call, track_tensor, _ModuleStackTracer.create_node`.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any, TypeAlias

import torch
from torch.fx import Node
from torch.utils._pytree import tree_flatten

from .block_recordings import LITERALS, MadeNode, NotReplayable, Recording
from .copied_values import CopiedValues, Originals, Returned
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
        symbols: Symbols that the trace knows by another number since the call.
        known_numbers: Positions of the sizes by the `id` of their symbolic node.
        new_numbers: Sizes that the call made and left.
        functions, last_function, calls: What it changed in the counters of the tracer.
        outputs, output_spec: What it returned.
    """

    nodes: tuple[CopiedNode, ...]
    refers: dict[Node, int] = field(repr=False)
    outside: dict[Node, tuple[str, int]] = field(repr=False)
    tensors: tuple[torch.Tensor, ...] = field(repr=False)
    numbers: tuple[Any, ...] = field(repr=False)
    forced: dict[int, int]
    renewed: dict[int, int]
    symbols: tuple[tuple[Any, Any], ...]
    known_numbers: dict[int, int]
    new_numbers: dict[int, NewNumber]
    functions: dict[Any, int]
    last_function: Any
    calls: dict[str, int]
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
        symbols=tuple(changed_symbols(tracer, recording)),
        known_numbers=known,
        new_numbers=new_numbers(tracer, recording, index, outside, known, leaves),
        functions={f: n for f, n in functions.items() if n},
        last_function=tracer.torch_fn_metadata,
        calls=_calls(recording),
        outputs=tuple(_outputs(leaves, recording, index)),
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


def _outputs(leaves: Sequence[Any], recording: Recording, index: dict[Node, int]) -> list[tuple[str, Any]]:
    """Return how each leaf of the result is made; one that comes twice is made once."""
    places: dict[int, int] = {}
    found = []
    for at, leaf in enumerate(leaves):
        first = places.setdefault(id(leaf), at) if isinstance(leaf, torch.Tensor) else at
        found.append(_output(leaf, recording, index) if first == at else ("again", first))
    return found


def _output(leaf: Any, recording: Recording, index: dict[Node, int]) -> tuple[str, Any]:
    if isinstance(leaf, torch.Tensor):
        at = next((at for at, tensor in enumerate(recording.tensors) if tensor is leaf), None)
        return ("made", _made_output(leaf, recording.tracer, index)) if at is None else ("tensor", at)
    if isinstance(leaf, SymbolicNumber):
        return "number", leaf
    if isinstance(leaf, LITERALS):
        return "literal", leaf
    raise NotReplayable(f"it returns a {type(leaf).__name__}")


def _made_output(tensor: Any, tracer: Any, index: dict[Node, int]) -> tuple[int, Returned]:
    reason = why_not_observable(tensor)
    proxy = proxy_of(tracer, tensor)
    if reason is not None or proxy is None or proxy.constant is not None:
        raise NotReplayable(f"it returns {reason or 'a tensor that is not the value of a node'}")
    if proxy.proxy.node not in index:
        raise NotReplayable("it returns a tensor from outside")
    if tensor.is_leaf and tensor.requires_grad:
        raise NotReplayable("it returns a leaf of autograd")
    if tensor._is_view():
        raise NotReplayable("it returns a view")
    returned = Returned.of(tensor)
    if tensor_facts(CopiedValues({}).tensor(returned, lambda number: number)) != tensor_facts(tensor):
        raise NotReplayable("it returns a tensor of which no copy can be made")
    return index[proxy.proxy.node], returned
