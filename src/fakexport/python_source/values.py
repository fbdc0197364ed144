"""What a program computes, in the form from which Python is written.

Differs from the graph in that regions that only switch a mode (autocast, gradients) are opened up into their
surroundings, and that the nodes of other subgraphs hang on the operation that runs them.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import Any

from torch.fx import Node


@dataclass(eq=False, slots=True)
class Value:
    """Something that has a name in the file. Two values are equal if they are the same object.

    Args:
        hint: Text from which the name is made; not to be trusted.
    """

    hint: str


@dataclass(eq=False, slots=True)
class Argument(Value):
    """An input of the user, or a parameter of a subgraph."""


@dataclass(eq=False, slots=True)
class Stored(Value):
    """A weight, buffer or constant.

    Args:
        name: Its full name, a key of the state dict or of the constants.
    """

    name: str


@dataclass(frozen=True, slots=True)
class Call:
    """One call of one module, as the stack of a node has it.

    Args:
        key: Differs between two calls of one module.
        path: `model.layers.3`.
        kind: Name of its class, with its module: `torch.nn.modules.linear.Linear`.
    """

    key: str
    path: str
    kind: str


@dataclass(frozen=True, slots=True)
class Context:
    """A mode under which operations run.

    Args:
        kind: `set_grad_enabled` or `autocast`.
        arguments: Arguments of that context manager, in order.
    """

    kind: str
    arguments: tuple[Any, ...]


@dataclass(eq=False, slots=True)
class Operation(Value):
    """A node that calls something.

    Args:
        node: The node.
        target: What is called.
        args, kwargs: With values, bodies and literals.
        calls: The modules that were being called, from the outermost in; None where the graph does not say.
        contexts: The modes around it, from the outermost in.
        lost: Path of the innermost module that is not among `calls`, since it belongs to another module than
            the one that called it; "" as a rule.
        index: Its position among the operations of its graph.
    """

    node: Node
    target: Any
    args: tuple[Any, ...]
    kwargs: dict[str, Any]
    calls: tuple[Call, ...] | None
    contexts: tuple[Context, ...]
    lost: str = ""
    index: int = -1


@dataclass(eq=False, slots=True)
class Body:
    """A subgraph that an operation runs.

    Args:
        hint: Its name in the graph: `true_graph_0`.
        parameters: In order.
        operations: In order.
        result: What it returns: values and literals, nested.
    """

    hint: str
    parameters: tuple[Argument, ...]
    operations: list[Operation] = field(default_factory=list)
    result: Any = None


def leaves(tree: Any) -> Iterator[Any]:
    """Yield everything in nested containers that is not a container; of a slice, its three parts."""
    if isinstance(tree, (list, tuple)):
        for item in tree:
            yield from leaves(item)
    elif isinstance(tree, dict):
        for item in tree.values():
            yield from leaves(item)
    elif isinstance(tree, slice):
        yield from leaves((tree.start, tree.stop, tree.step))
    else:
        yield tree


def mapped(tree: Any, function: Any) -> Any:
    """Return the nested containers with `function` applied to each leaf."""
    if isinstance(tree, (list, tuple)):
        items = [mapped(item, function) for item in tree]
        return items if isinstance(tree, list) else tuple(items)
    if isinstance(tree, dict):
        return {key: mapped(item, function) for key, item in tree.items()}
    if isinstance(tree, slice):
        return slice(*mapped((tree.start, tree.stop, tree.step), function))
    return function(tree)
