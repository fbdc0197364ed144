"""Write a Python method that runs the operations of a region or a subgraph."""

from __future__ import annotations

import builtins
import math
import operator
import re
import sys
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from itertools import groupby
from types import ModuleType
from typing import Any, cast

import torch
from torch.fx import Graph, GraphModule, Node

from fakexport._torch.operators.operator_registry import HigherOrderOperator, OpOverload
from fakexport.exporting.program import (
    Mode,
    SourcePaths,
    attribute,
    module_path,
    source_span,
    target_name,
    with_open_modes,
)

from .literal_text import Devices, PythonSourceError, literal_text, quoted
from .module_tree import ModuleNode, ModuleTree
from .names import MODULE_NAMES, Names, base_name, comment_text, is_plain_attribute
from .regions import Region, operations

_WIDTH = 100
INDENT = "    "
_INFIX = {
    **{operator.add: "+", operator.sub: "-", operator.mul: "*", operator.truediv: "/", operator.mod: "%"},
    **{operator.floordiv: "//", operator.pow: "**", operator.lshift: "<<", operator.rshift: ">>"},
    **{operator.and_: "&", operator.or_: "|", operator.xor: "^", operator.eq: "==", operator.ne: "!="},
    **{operator.lt: "<", operator.le: "<=", operator.gt: ">", operator.ge: ">="},
}
_PREFIX = {operator.neg: "-", operator.not_: "not ", operator.pos: "+", operator.invert: "~"}
_SPECIAL = {
    "aten.sym_size.int": "{}.shape[{}]",
    "aten.item.default": "{}.item()",
    "aten._assert_scalar.default": "assert {}, {}",
    "operator.getitem": "{}[{}]",
}
_MODULES: tuple[ModuleType, ...] = (operator, math, builtins, torch)
_WORD = re.compile(r"[A-Za-z_][A-Za-z0-9_]*", re.ASCII)


@dataclass
class Scope:
    """Data that the methods of one generated class share.

    Args:
        owner: The graph of the program.
        tree: The tree of all modules.
        node: The module of the class.
        devices: The devices of the class.
        methods: For each region of a child module, the name of its method.
        paths: Shortens paths of the model's files.
        names: Creates names for the methods.
        subgraphs: The subgraphs that the methods run, each with the name of its own method.
    """

    owner: GraphModule
    tree: ModuleTree
    node: ModuleNode
    devices: Devices
    methods: Mapping[Region, str]
    paths: SourcePaths
    names: Names
    subgraphs: list[tuple[GraphModule, str]] = field(default_factory=list)

    def method(self, name: str, region: Region, argument: str = "") -> list[str]:
        """Return the text of a region's method, and of the methods of subgraphs that it runs.

        Args:
            argument: Base name of all parameters. Default: the names of the values in the graph.
        """
        text, tree = MethodText(self, self.owner), self.tree
        values = tree.arguments(region)
        parameters = [text.declare(value, argument or tree.base_name(value)) for value in values]
        lines = text.region(region)
        if region.outputs:
            lines.append(f"return {', '.join(map(text.text, region.outputs))}")
        return [*defined(name, parameters, lines), *self.subgraph_methods()]

    def subgraph_methods(self) -> list[str]:
        """Return the methods of the subgraphs that the existing methods run, and of nested subgraphs."""
        lines: list[str] = []
        while self.subgraphs:
            subgraph, name = self.subgraphs.pop(0)
            graph, text = with_open_modes(subgraph), MethodText(self, subgraph)
            values = graph.find_nodes(op="placeholder")
            parameters = [text.declare(value, base_name(value.name)) for value in values]
            lines += ["", *defined(name, parameters, text.graph(graph))]
        return lines


class MethodText:
    """Writes one method.

    Args:
        scope: The data of the class.
        owner: The graph module that contains the subgraphs.

    Attributes:
        names: Creates names for variables.
        values: The expression for each value.
    """

    def __init__(self, scope: Scope, owner: GraphModule) -> None:
        self._scope = scope
        self._owner = owner
        self._is_from_torch = is_from_torch(scope.node.kind) and owner is scope.owner
        self.names = Names(MODULE_NAMES)
        self.values: dict[Node, str] = {}
        self._line = ""

    def declare(self, value: Node, wanted: str) -> str:
        """Create a new variable name for a value."""
        name = self.values[value] = self.names.new(wanted)
        return name

    def region(self, region: Region) -> list[str]:
        """Return the statements of a region, without the `with` lines around the whole region."""
        depth = 0
        while region.call.path and _mode(region, depth):
            depth += 1
        return self._items(region.items, depth)

    def graph(self, graph: Graph) -> list[str]:
        """Return the statements of a subgraph, including its `return`."""
        (output,) = graph.find_nodes(op="output")
        return [*self._items(operations(graph), 0), f"return {self.text(output.args[0])}"]

    def _items(self, items: Iterable[Node | Region], depth: int) -> list[str]:
        lines: list[str] = []
        for modes, group in groupby(items, key=lambda item: _mode(item, depth)):
            if modes:
                lines.append(self._with(*modes))
                self._line = ""
                lines += indented(self._items(group, depth + 1))
                self._line = ""
                continue
            for item in group:
                lines += self._call(item) if isinstance(item, Region) else self._operation(item)
        return lines

    def _with(self, mode: Mode) -> str:
        given = {key: value for key, value in mode.kwargs.items() if value is not None}
        return f"with torch.{mode.name}({', '.join(self._arguments(mode.args, given))}):"

    def _operation(self, node: Node) -> list[str]:
        lines = [] if self._is_from_torch else self._comment(node)
        path, target = module_path(node), target_name(node.target)
        if self._owner is self._scope.owner and path not in ("", self._scope.node.path):
            lines.append(f"# in {comment_text(path)}, which is not part of this module")
        if target == "higher_order.cond":
            predicate, *branches, operands = cast("tuple[Any, ...]", node.args)
            given, assigned = [self.text(operand) for operand in operands], self._assigned(node)
            calls = (wrapped(f"{assigned}{self.text(branch)}(", given, ")") for branch in branches)
            yes, no = map(indented, calls)
            return [*lines, f"if {self.text(predicate)}:", *yes, "else:", *no]
        words = self._arguments(node.args, node.kwargs)
        if node.target in _INFIX and len(words) == 2:
            left, right = (f"({word})" if word.startswith("-") else word for word in words)
            text = f"{left} {_INFIX[node.target]} {right}"
        elif node.target in _PREFIX and len(words) == 1:
            text = f"{_PREFIX[node.target]}{words[0]}"
        elif target in _SPECIAL and not node.kwargs and len(words) == _SPECIAL[target].count("{}"):
            text = _SPECIAL[target].format(*words)
        else:
            callee = self._callee(node.target)
            return lines + wrapped(f"{self._assigned(node)}{callee}(", words, ")")
        return [*lines, f"{self._assigned(node)}{text}"]

    def _assigned(self, node: Node) -> str:
        """Return the start of an assignment, such as `linear = `, or "" if the value is not used."""
        return f"{self.declare(node, base_name(node.name))} = " if node.users else ""

    def _call(self, region: Region) -> list[str]:
        scope, path = self._scope, region.call.path
        method = scope.methods[region]
        is_shown = is_from_torch(region.call.kind) and not self._is_from_torch
        lines = self._comment(next(iter(region.nodes))) if is_shown else []
        module = scope.node.reach(path[len(scope.node.path) :].lstrip("."))
        callee = module if method == "forward" else f"{module}.{method}"
        given = [self.text(value) for value in scope.tree.arguments(region)]
        names = [self.declare(value, base_name(value.name)) for value in region.outputs]
        assigned = f"{', '.join(names)} = " if names else ""
        return lines + wrapped(f"{assigned}{callee}(", given, ")")

    def _comment(self, node: Node) -> list[str]:
        line = _source_line(node, self._scope.paths)
        if not line or line == self._line:
            return []
        self._line = line
        return [f"# {line}"]

    def text(self, value: Any) -> str:
        match value:
            case Node(op="get_attr"):
                return self._subgraph(str(value.target))
            case Node():
                return self._value(value)
            case list():
                return f"[{', '.join(map(self.text, value))}]"
            case tuple():
                return f"({', '.join(map(self.text, value))}{',' if len(value) == 1 else ''})"
            case dict():
                pairs = (f"{literal_text(key)}: {self.text(item)}" for key, item in value.items())
                return f"{{{', '.join(pairs)}}}"
            case slice():
                return f"slice({', '.join(map(self.text, (value.start, value.stop, value.step)))})"
            case OpOverload() | HigherOrderOperator():
                return self._callee(value)
        return self._scope.devices.of_literal(value) or literal_text(value)

    def _value(self, node: Node) -> str:
        if node not in self.values:
            held = self._scope.tree.below(self._scope.node.path, node)
            assert held is not None, f"this method cannot access the value {node.name}"
            self.values[node] = self._scope.node.reach(held)
        return self.values[node]

    def _subgraph(self, target: str) -> str:
        held = attribute(self._owner, target)
        if not isinstance(held, GraphModule):
            raise PythonSourceError(f"the graph reads an attribute that is not a subgraph: {target!r}")
        name = self._scope.names.new(base_name(target.rpartition(".")[2]))
        self._scope.subgraphs.append((held, name))
        return f"self.{name}"

    def _arguments(self, args: Sequence[Any], kwargs: Mapping[str, Any]) -> list[str]:
        named = {key: self.text(value) for key, value in kwargs.items()}
        plain = [f"{key}={text}" for key, text in named.items() if is_plain_attribute(key)]
        odd = [f"{quoted(key)}: {text}" for key, text in named.items() if not is_plain_attribute(key)]
        return [*map(self.text, args), *plain, *([f"**{{{', '.join(odd)}}}"] if odd else [])]

    def _callee(self, target: Any) -> str:
        if isinstance(target, OpOverload):
            namespace, _, rest = str(target).partition(".")
            name, _, overload = rest.rpartition(".")
            return _attributes("aten" if namespace == "aten" else f"torch.ops.{namespace}", name, overload)
        if isinstance(target, HigherOrderOperator):
            return _attributes(f"torch.ops.{target.namespace}", target.name())
        name = getattr(target, "__name__", "")
        for module in _MODULES:
            if _WORD.fullmatch(name) and getattr(module, name, None) is target:
                return name if module is builtins else f"{module.__name__}.{name}"
        if (owner := torch_module(target)) is not None:
            return f"{owner}.{name}"
        raise PythonSourceError(
            f"the graph calls {target_name(target)}, which cannot be written as Python source"
        )


def is_from_torch(kind: str) -> bool:
    """Return whether a class belongs to torch. The source lines of such classes are not shown."""
    return kind.startswith("torch.")


def torch_module(target: Any) -> str | None:
    """Return the torch module from which a function can be imported under its own name, or None."""
    owner, name = getattr(target, "__module__", None), getattr(target, "__name__", "")
    if not isinstance(owner, str) or not owner.startswith("torch."):
        return None
    if not all(_WORD.fullmatch(part) for part in (*owner.split("."), name)):
        return None
    return owner if getattr(sys.modules.get(owner), name, None) is target else None


def _attributes(owner: str, *names: str) -> str:
    for name in names:
        owner = f"{owner}.{name}" if is_plain_attribute(name) else f"getattr({owner}, {quoted(name)})"
    return owner


def _mode(item: Node | Region, depth: int) -> tuple[Mode, ...]:
    """Return the mode at this depth if all nodes of an item share it, otherwise an empty tuple."""
    nodes = item.nodes if isinstance(item, Region) else (item,)
    found = [node.meta["modes"][depth : depth + 1] for node in nodes]
    return found[0] if all(each == found[0] for each in found) else ()


def defined(name: str, parameters: Sequence[str], lines: Sequence[str]) -> list[str]:
    """Return the lines of a method definition."""
    return [f"def {name}({', '.join(('self', *parameters))}):", *indented(lines or ("pass",))]


def indented(lines: Iterable[str]) -> list[str]:
    """Return lines indented by one level."""
    return [f"{INDENT}{line}" for line in lines]


def wrapped(before: str, arguments: Sequence[str], after: str) -> list[str]:
    """Format a call on one line, with all arguments on a second line, or with one argument per line."""
    joined = ", ".join(arguments)
    if len(before) + len(joined) + len(after) <= _WIDTH or not arguments:
        return [f"{before}{joined}{after}"]
    return [before, *indented([joined] if len(joined) <= _WIDTH else (f"{a}," for a in arguments)), after]


def _source_line(node: Node, paths: SourcePaths) -> str:
    """Return a node's source line as a comment (`model.py:571 position_ids = ...`), or "" if unknown."""
    span = source_span(node)
    if span is None:
        return ""
    place = re.compile(rf'[ \t]*File "{re.escape(span.path)}", line {span.line}(,.*)?\n(?! *File ")(.*)')
    code = [match[2] for match in place.finditer(node.meta["stack_trace"])]
    return comment_text(f"{paths.shortened(span.path)}:{span.line}  {code[-1] if code else ''}")
