"""From the graph of a program to the operations that are written."""

from __future__ import annotations

import operator
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from torch.export import ExportedProgram
from torch.export.graph_signature import InputKind, InputSpec
from torch.fx import GraphModule, Node

from fakexport.program import NO_PATH, attribute, plain_path, target_name, with_plain_indexing

from .error import PythonSourceError
from .values import Argument, Body, Call, Context, Operation, Stored, Value, mapped

_STORED = (InputKind.PARAMETER, InputKind.BUFFER, InputKind.CONSTANT_TENSOR)
_CONTEXTS = {
    "higher_order.wrap_with_set_grad_enabled": ("set_grad_enabled", 1),
    "higher_order.wrap_with_autocast": ("autocast", 4),
}


@dataclass(frozen=True)
class Reading:
    """A program as it is written.

    Args:
        body: The operations of the main graph; parameters are the inputs, its result includes mutations.
        stored: The value of each weight and constant that the graph takes, by its name.
        names: The value of each placeholder, by the name of its node.
        kinds: Class of each module that was called, by its path; "" is the root.
    """

    body: Body
    stored: Mapping[str, Stored]
    names: Mapping[str, Value]
    kinds: Mapping[str, str]


def read_program(program: ExportedProgram) -> Reading:
    """Read the graph; the program is not changed.

    Raises:
        PythonSourceError: it holds something without Python text: a C++ object, an effect token.
    """
    specs = {spec.arg.name: spec for spec in program.graph_signature.input_specs}
    root = with_plain_indexing(program)
    reader = _Reader(root)
    body = Body("main", ())
    values: dict[str, Value] = {}
    for node in root.graph.find_nodes(op="placeholder"):
        values[node.name] = reader.values[node] = _placeholder(node, specs[node.name])
    body.parameters = tuple(value for value in values.values() if isinstance(value, Argument))
    reader.through(root, body, contexts=(), is_main=True)
    for index, operation in enumerate(body.operations):
        operation.index = index
    stored = {value.name: value for value in values.values() if isinstance(value, Stored)}
    return Reading(body, stored, values, reader.kinds)


def _placeholder(node: Node, spec: InputSpec) -> Value:
    if spec.kind in _STORED:
        assert spec.target is not None
        return Stored(spec.target.rpartition(".")[2], spec.target)
    if spec.kind is InputKind.USER_INPUT:
        return Argument(node.name)
    what = {
        InputKind.CUSTOM_OBJ: f"an object of a C++ class ({spec.target})",
        InputKind.TOKEN: "an effect token",
    }
    raise PythonSourceError(
        f"the program holds {what.get(spec.kind, spec.kind.name)}, which has no Python source"
    )


class _Reader:
    def __init__(self, root: GraphModule) -> None:
        self.values: dict[Node, Any] = {}
        self.kinds: dict[str, str] = {}

    def through(
        self, owner: GraphModule, body: Body, *, contexts: tuple[Context, ...], is_main: bool
    ) -> None:
        """Append the operations of a graph whose placeholders have values, and set the result."""
        for node in owner.graph.nodes:
            if node.op == "get_attr":
                held = attribute(owner, str(node.target))
                if not isinstance(held, GraphModule):
                    raise PythonSourceError(
                        f"the graph reads an attribute that is not a subgraph: {node.target}"
                    )
                self.values[node] = (str(node.target), held)
            elif node.op == "call_function":
                self.values[node] = self._called(node, body, contexts, is_main)
            elif node.op == "output":
                body.result = self._resolved(node.args[0])
            elif node.op != "placeholder":
                raise PythonSourceError(f"a graph of a program has no {node.op}: {node.name}")

    def _called(self, node: Node, body: Body, contexts: tuple[Context, ...], is_main: bool) -> Any:
        mode = _CONTEXTS.get(target_name(node.target))
        if mode is not None:
            return self._opened(node, *mode, body, contexts, is_main)
        args, kwargs = self._resolved(node.args), self._resolved(node.kwargs)
        if node.target is operator.getitem and isinstance(args[0], (tuple, list)):
            return args[0][args[1]]
        calls, lost = self._calls(node) if is_main else ((), "")
        operation = Operation(node.name, node, node.target, args, kwargs, calls, contexts, lost)
        body.operations.append(operation)
        return operation

    def _opened(
        self,
        node: Node,
        kind: str,
        count: int,
        body: Body,
        contexts: tuple[Context, ...],
        is_main: bool,
    ) -> Any:
        """Return the operations of a subgraph that runs under another mode, inlined."""
        held = node.args[count]
        assert isinstance(held, Node)
        _, subgraph = self.values[held]
        operands = [self._resolved(arg) for arg in node.args[count + 1 :]]
        placeholders = subgraph.graph.find_nodes(op="placeholder")
        self.values.update(zip(placeholders, operands, strict=True))
        inner = Body("", (), body.operations)
        context = Context(kind, tuple(node.args[:count]))
        self.through(subgraph, inner, contexts=(*contexts, context), is_main=is_main)
        return inner.result

    def _body(self, name: str, subgraph: GraphModule) -> Body:
        placeholders = subgraph.graph.find_nodes(op="placeholder")
        body = Body(name, tuple(Argument(node.name) for node in placeholders))
        self.values.update(zip(placeholders, body.parameters, strict=True))
        self.through(subgraph, body, contexts=(), is_main=False)
        for index, operation in enumerate(body.operations):
            operation.index = index
        return body

    def _resolved(self, tree: Any) -> Any:
        """Return arguments with the values of nodes in the places of the nodes."""

        def value(leaf: Any) -> Any:
            if not isinstance(leaf, Node):
                return leaf
            found = self.values[leaf]
            is_subgraph = isinstance(found, tuple) and len(found) == 2 and isinstance(found[1], GraphModule)
            return self._body(*found) if is_subgraph else found

        return mapped(tree, value)

    def _calls(self, node: Node) -> tuple[tuple[Call, ...] | None, str]:
        stack = node.meta.get("nn_module_stack")
        if not stack or next(iter(stack.values()))[0] == NO_PATH:
            return None, ""
        calls: list[Call] = []
        lost = ""
        for key, (path, kind) in stack.items():
            call = Call(str(key), plain_path(path), _kind_name(kind))
            self.kinds.setdefault(call.path, call.kind)
            above = calls[-1].path if calls else ""
            if call.path != above and (not above or call.path.startswith(f"{above}.")):
                calls.append(call)
                lost = ""
            elif call.path not in ("", above):
                lost = call.path
        return tuple(calls), lost


def _kind_name(kind: Any) -> str:
    return kind if isinstance(kind, str) else f"{kind.__module__}.{kind.__qualname__}"
