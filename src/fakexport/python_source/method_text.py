"""Python text of one method: the operations of a region, or of a subgraph."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field

from torch.fx import Node

from fakexport.program import SourcePaths, source_span, target_name

from .literal_text import Devices
from .module_tree import ModuleNode, ModuleTree
from .names import MODULE_NAMES, Names, base_name, comment_text
from .operation_text import OperationText
from .regions import Region, used_values
from .values import Body, Context, Operation, Stored, Value, leaves

_WIDTH = 110
INDENT = "    "


@dataclass(frozen=True, slots=True)
class Callee:
    """How a parent calls a region: the module's `forward`, or another method of it."""

    method: str
    is_from_torch: bool


@dataclass
class Scope:
    """What the methods of one class share.

    Args:
        tree: All modules.
        node: The module.
        devices: Its devices.
        names: Names of its methods.
        callees: Method of each region of the modules below.
        paths: How the files of the model are named.
    """

    tree: ModuleTree
    node: ModuleNode
    devices: Devices
    callees: Mapping[Region, Callee]
    paths: SourcePaths
    bodies: list[tuple[Body, str]] = field(default_factory=list)
    names: Names = field(default_factory=Names)

    def reach(self, stored: Stored) -> str | None:
        """Return text that gets a weight from this module, or None where it is elsewhere."""
        relative = self.tree.below(self.node.path, stored.name)
        return None if relative is None else self.node.reach(relative)


class MethodText:
    """Writes one method.

    Args:
        scope: The class.
        is_from_torch: Whether the module's class is torch's own, whose lines are not worth showing.
        argument: Returns the preferred name of a parameter.
    """

    def __init__(self, scope: Scope, *, is_from_torch: bool, argument: Callable[[Value], str]) -> None:
        self._scope = scope
        self._is_from_torch = is_from_torch
        self._argument = argument
        self._names = Names(MODULE_NAMES)
        self._values: dict[Value, str] = {}
        self._text = OperationText(self.name, self._body, scope.devices)
        self._line = ""
        self._used: set[Value] = set()

    def parameters(self, values: Iterable[Value]) -> list[str]:
        """Declare values that the method is given, and return their names."""
        return [self.declare(value, self._argument(value)) for value in values]

    def declare(self, value: Value, wanted: str) -> str:
        """Return a new name for a value."""
        self._values[value] = self._names.new(wanted)
        return self._values[value]

    def reserve(self, name: str) -> None:
        """Keep a name for a parameter."""
        self._names.new(name)

    def bind(self, value: Value, name: str) -> None:
        """Let a reserved name stand for a value."""
        self._values[value] = name

    def name(self, value: Value) -> str:
        """Return text that gets a value."""
        known = self._values.get(value)
        if known is None:
            assert isinstance(value, Stored), f"{value.hint} has no name here"
            known = self._scope.reach(value)
            assert known is not None, f"{value.name} cannot be reached here"
        return known

    def text(self, tree: object) -> str:
        """Return text of nested values."""
        return self._text.text(tree)

    def region(self, region: Region) -> list[str]:
        """Return the statements of a region."""
        for operation in _operations(region):
            self._used.update(used_values(operation))
        self._used.update(region.outputs)
        return self._items(region.items, _common_contexts(region) if region.call else ())

    def body(self, body: Body) -> list[str]:
        """Return the statements of a subgraph, with its `return`."""
        for operation in body.operations:
            self._used.update(used_values(operation))
        self._used.update(leaf for leaf in leaves(body.result) if isinstance(leaf, Value))
        return [*self._items(body.operations, ()), f"return {self.text(body.result)}"]

    def _items(self, items: Sequence[Operation | Region], around: tuple[Context, ...]) -> list[str]:
        lines: list[str] = []
        index = 0
        while index < len(items):
            context = _next_context(items[index], len(around))
            if context is None:
                lines += self._item(items[index])
                index += 1
                continue
            end = index
            while end < len(items) and _next_context(items[end], len(around)) == context:
                end += 1
            lines.append(self._text.context(context))
            self._line = ""
            lines += [f"{INDENT}{line}" for line in self._items(items[index:end], (*around, context))]
            self._line = ""
            index = end
        return lines

    def _item(self, item: Operation | Region) -> list[str]:
        return self._call(item) if isinstance(item, Region) else self._operation(item)

    def _operation(self, operation: Operation) -> list[str]:
        lines = [] if self._is_from_torch else self._comment(source_line(operation.node, self._scope.paths))
        if operation.lost:
            lines.append(f"# in {comment_text(operation.lost)}, which is not part of this module")
        if target_name(operation.target) == "higher_order.cond":
            return lines + self._condition(operation)
        before, arguments, after = self._text.expression(operation)
        return lines + wrapped(f"{self._assigned(operation)}{before}", arguments, after)

    def _condition(self, operation: Operation) -> list[str]:
        """Return `torch.cond` as Python's own condition."""
        predicate, *branches, operands = operation.args
        given = [self.text(operand) for operand in operands]
        calls = [f"{self.text(branch)}(" for branch in branches]
        first = f"if {self.text(predicate)}:"
        target = self._assigned(operation)
        if_true, if_false = (
            [f"{INDENT}{line}" for line in wrapped(f"{target}{call}", given, ")")] for call in calls
        )
        return [first, *if_true, "else:", *if_false]

    def _assigned(self, operation: Operation) -> str:
        """Return `linear = `, where the value is used."""
        is_used = operation in self._used
        return f"{self.declare(operation, base_name(operation.hint))} = " if is_used else ""

    def _call(self, region: Region) -> list[str]:
        callee = self._scope.callees[region]
        first = next(_operations(region))
        lines = []
        if callee.is_from_torch and not self._is_from_torch:
            lines = self._comment(source_line(first.node, self._scope.paths))
        relative = region.path[len(self._scope.node.path) :].lstrip(".")
        owner = self._scope.node.reach(relative)
        method = "" if callee.method == "forward" else f".{callee.method}"
        given = [self.name(value) for value in self._scope.tree.arguments(region)]
        names = [self.declare(value, base_name(value.hint)) for value in region.outputs]
        target = f"{', '.join(names)} = " if names else ""
        return lines + wrapped(f"{target}{owner}{method}(", tuple(given), ")")

    def _comment(self, line: str) -> list[str]:
        if not line or line == self._line:
            return []
        self._line = line
        return [f"# {line}"]

    def _body(self, body: Body) -> str:
        name = self._scope.names.new(base_name(body.hint))
        self._scope.bodies.append((body, name))
        return f"self.{name}"


def _operations(region: Region) -> Iterator[Operation]:
    for item in region.items:
        if isinstance(item, Region):
            yield from _operations(item)
        else:
            yield item


def _next_context(item: Operation | Region, depth: int) -> Context | None:
    """Return the mode at this depth that all operations of the item are under."""
    operations = _operations(item) if isinstance(item, Region) else (item,)
    found = {
        operation.contexts[depth] if depth < len(operation.contexts) else None for operation in operations
    }
    return found.pop() if len(found) == 1 else None


def _common_contexts(region: Region) -> tuple[Context, ...]:
    """Return the modes that all operations are under: anyone who calls the region has entered them."""
    contexts: tuple[Context, ...] = ()
    while (context := _next_context(region, len(contexts))) is not None:
        contexts = (*contexts, context)
    return contexts


def wrapped(before: str, arguments: Sequence[str], after: str) -> list[str]:
    """Return a call on one line, or with its arguments on lines of their own."""
    line = f"{before}{', '.join(arguments)}{after}"
    if len(line) <= _WIDTH - 2 * len(INDENT) or not arguments:
        return [line]
    lines, current = [before], ""
    for argument in arguments:
        if current and len(current) + len(argument) + 2 > _WIDTH - 4 * len(INDENT):
            lines.append(f"{INDENT}{current}")
            current = ""
        current = f"{current} {argument}," if current else f"{argument},"
    return [*lines, f"{INDENT}{current}", after]


def source_line(node: Node, paths: SourcePaths) -> str:
    """Return `model.py:571  position_ids = ...`, its path as in an archive.

    "" where the graph does not tell.
    """
    span = source_span(node)
    if span is None:
        return ""
    place = f"{paths.shortened(span.path)}:{span.line}"
    code = _code(node.meta["stack_trace"], span.path, span.line)
    return comment_text(f"{place}  {code}" if code else place)


def _code(trace: str, path: str, line: int) -> str:
    """Return the text of the line, which the trace has below the place."""
    lines = trace.splitlines()
    place = f'File "{path}", line {line}'
    for number in range(len(lines) - 2, -1, -1):
        found = lines[number].strip()
        if found == place or found.startswith(f"{place},"):
            code = lines[number + 1].strip()
            return "" if code.startswith('File "') else code
    return ""
