"""Python text of what a program takes: parameters, how containers are taken apart, and what is checked."""

from __future__ import annotations

from collections import OrderedDict, defaultdict
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Any

import sympy
import torch
from torch.export import ExportedProgram
from torch.export.graph_signature import ConstantArgument, InputKind

from fakexport._torch.symbolic_numbers import expression_of, finite_bound
from fakexport.conditions import UnreadableCondition, conditions_of, expression_text

from .literal_text import literal_text
from .method_text import MethodText
from .names import MODULE_NAMES, Names, base_name, comment_text, identifier
from .values import Value

_MAPPINGS = (dict, OrderedDict, defaultdict)


@dataclass(frozen=True)
class InputText:
    """The beginning of `forward`.

    Args:
        parameters: `["x", "*", "mask=None"]`.
        lines: Statements that take the inputs apart and check them.
    """

    parameters: list[str]
    lines: list[str]


@dataclass
class _Leaf:
    value: Value
    node: torch.fx.Node
    spec: Any
    text: str = ""


def input_text(program: ExportedProgram, values: Mapping[str, Value], text: MethodText) -> InputText:
    """Declare the inputs in the method, and return what is before its first operation."""
    nodes = {node.name: node for node in program.graph.find_nodes(op="placeholder")}
    found = [
        _Leaf(values[spec.arg.name], nodes[spec.arg.name], spec.arg)
        for spec in program.graph_signature.input_specs
        if spec.kind is InputKind.USER_INPUT
    ]
    structure = program.call_spec.in_spec
    positional, keywords = structure.children()
    given = _argument_names(program, positional.num_children)
    names = Names(MODULE_NAMES)
    own = {name: names.new(identifier(name)) for name in (*given, *keywords.context)}
    for name in own.values():
        text.reserve(name)
    unpacking = _Unpacking(iter(found), text)
    for name, part in zip(
        (*given, *keywords.context), (*positional.children(), *keywords.children()), strict=True
    ):
        unpacking.take(part, own[name], is_parameter=True)
    defaults = {leaf.text: _default(leaf.spec) for leaf in found if isinstance(leaf.spec, ConstantArgument)}
    return InputText(
        _parameters([own[name] for name in given], [own[name] for name in keywords.context], defaults),
        [*unpacking.lines, *dict.fromkeys(_checks(program, found))],
    )


def _argument_names(program: ExportedProgram, count: int) -> list[str]:
    entry = next((entry for entry in program.module_call_graph if entry.fqn == ""), None)
    named = list((entry.signature.forward_arg_names if entry and entry.signature else None) or ())
    return (
        [str(name) for name in named[:count]] if len(named) >= count else [f"arg_{i}" for i in range(count)]
    )


def _default(spec: ConstantArgument) -> str:
    return literal_text(spec.value)


def _parameters(positional: list[str], keywords: list[str], defaults: Mapping[str, str]) -> list[str]:
    texts = []
    has_default = True
    for name in reversed(positional):
        has_default = has_default and name in defaults
        texts.append(f"{name}={defaults[name]}" if has_default else name)
    star = ["*"] if keywords else []
    named = [f"{name}={defaults[name]}" if name in defaults else name for name in keywords]
    return [*reversed(texts), *star, *named]


class _Unpacking:
    def __init__(self, leaves: Iterator[_Leaf], text: MethodText) -> None:
        self._leaves = leaves
        self._text = text
        self.lines: list[str] = []

    def take(self, spec: Any, text: str, *, is_parameter: bool = False) -> None:
        """Name the leaves in a part of the inputs, which this text gets."""
        if spec.is_leaf():
            self._leaf(text, is_parameter)
            return
        if issubclass(spec.type, (tuple, list)):
            for index, child in enumerate(spec.children()):
                self.take(child, f"{text}[{index}]")
        elif spec.type in _MAPPINGS:
            keys = spec.context[1] if spec.type is defaultdict else spec.context
            for key, child in zip(keys, spec.children(), strict=True):
                self.take(child, f"{text}[{literal_text(key)}]")
        else:
            for index in range(spec.num_leaves):
                self._leaf(f"pytree.tree_leaves({text})[{index}]", False)

    def _leaf(self, text: str, is_parameter: bool) -> None:
        leaf = next(self._leaves)
        if is_parameter:
            leaf.text = text
            self._text.bind(leaf.value, text)
            return
        leaf.text = self._text.declare(leaf.value, base_name(leaf.value.hint))
        self.lines.append(f"{leaf.text} = {text}")


def _checks(program: ExportedProgram, leaves: list[_Leaf]) -> Iterator[str]:
    symbols = dict(_symbols(leaves))
    for leaf in leaves:
        if isinstance(leaf.spec, ConstantArgument):
            is_single = leaf.spec.value is None or isinstance(leaf.spec.value, bool)
            yield f"assert {leaf.text} {'is' if is_single else '=='} {_default(leaf.spec)}"
        elif isinstance(value := leaf.node.meta.get("val"), torch.Tensor):
            yield from _shape_checks(leaf.text, value, symbols)
    for symbol, bounds in program.range_constraints.items():
        if symbol in symbols:
            yield from _range_check(symbols[symbol], bounds)
    places = {leaf.node.name: leaf.text for leaf in leaves}
    try:
        conditions = conditions_of(program)
    except UnreadableCondition as error:
        yield f"# not checked here: {comment_text(str(error))}"
        return
    for condition in conditions:
        yield f"assert {expression_text(condition.check, places)}"


def _symbols(leaves: list[_Leaf]) -> Iterator[tuple[Any, str]]:
    """Yield the first place from which each symbol can be read."""
    seen = set()
    for leaf in leaves:
        value = leaf.node.meta.get("val")
        sizes: dict[str, Any] = {"": value} if isinstance(value, torch.SymInt) else {}
        if isinstance(value, torch.Tensor):
            sizes = {f".shape[{dim}]": size for dim, size in enumerate(value.shape)}
        for place, size in sizes.items():
            symbol = expression_of(size) if isinstance(size, torch.SymInt) else None
            if isinstance(symbol, sympy.Symbol) and symbol not in seen:
                seen.add(symbol)
                yield symbol, f"{leaf.text}{place}"


def _shape_checks(name: str, value: torch.Tensor, symbols: Mapping[Any, str]) -> Iterator[str]:
    if all(isinstance(size, int) for size in value.shape):
        yield f"assert {name}.shape == {tuple(value.shape)}"
        return
    yield f"assert {name}.dim() == {value.dim()}"
    for dim, size in enumerate(value.shape):
        place = f"{name}.shape[{dim}]"
        if isinstance(size, int):
            yield f"assert {place} == {size}"
            continue
        text = _size_text(expression_of(size), symbols)  # Another formula is a condition of its own.
        if text is not None and text != place:
            yield f"assert {place} == {text}"


def _size_text(expression: Any, symbols: Mapping[Any, str]) -> str | None:
    """Return text of a sum of products of symbols, or None for anything else."""
    if isinstance(expression, sympy.Symbol):
        return symbols.get(expression)
    if isinstance(expression, sympy.Integer):
        return str(int(expression))
    signs = {sympy.Add: " + ", sympy.Mul: " * "}
    if type(expression) not in signs:
        return None
    parts = [_size_text(part, symbols) for part in expression.args]
    return None if None in parts else f"({signs[type(expression)].join(map(str, parts))})"


def _range_check(text: str, bounds: Any) -> Iterator[str]:
    """Stock programs too take 0 and 1 where the lower bound is 2, which stands for "not specialized"."""
    lower, upper = finite_bound(bounds.lower), finite_bound(bounds.upper)
    below = f"{lower} <= " if lower is not None and lower > 2 else ""
    above = f" <= {upper}" if upper is not None else ""
    if below or above:
        yield f"assert {below}{text}{above}"
