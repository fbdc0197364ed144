"""Conditions whether anything is selected, before lines that only write what is: they need no answer.

`if mask.any(): x[mask] = 0`, and `if rows.numel() == 0: continue` in a loop over experts. Where nothing is
selected, the lines compute on no rows and write none.
"""

from __future__ import annotations

import ast
import re
from collections.abc import Sequence, Set
from dataclasses import dataclass, field
from typing import NamedTuple

from fakexport.diagnostics.diagnostic import Span
from fakexport.diagnostics.statement import (
    assignments,
    block_around,
    condition_at,
    function_at,
    is_at,
    stored,
)

# Of no rows, these have no result; or they draw numbers, change what they are called on, or read a value.
_REFUSED = frozenset({
    "amax", "amin", "aminmax", "append", "argmax", "argmin", "bernoulli", "cummax", "cummin", "dropout",
    "extend", "insert", "item", "kthvalue", "max", "median", "min", "mode", "multinomial", "normal", "pop",
    "print", "setattr", "setdefault", "tolist", "topk", "update",
})  # fmt: skip
_CONVERSIONS = frozenset({"expand", "expand_as", "reshape", "to", "type_as", "unsqueeze", "view", "view_as"})
_FUNCTIONS = frozenset({"F", "functional", "math", "nn", "torch"})
_WRITES = frozenset({"index_add_", "index_copy_", "index_put_", "masked_fill_"})
_REFUSED_PARTS = (
    ast.NamedExpr,
    ast.Await,
    ast.Yield,
    ast.YieldFrom,
    ast.Lambda,
    ast.ListComp,
    ast.SetComp,
    ast.DictComp,
    ast.GeneratorExp,
)


@dataclass(frozen=True)
class SelectedWrites:
    """What follows a condition whether anything is selected.

    Args:
        selection: The variable that it asks: a boolean mask, or indices.
        is_mask: Whether it is a mask, as the condition asks for any.
        written: Variables that are written to where it selects.
        called: What is called besides functions of torch, such as `self.experts`: it must change no state.
        answer: What the condition is where something is selected.
    """

    selection: str
    is_mask: bool
    written: tuple[str, ...]
    called: tuple[str, ...]
    answer: bool


def selected_writes(span: Span) -> SelectedWrites | None:
    """Return what a condition and the lines that hang on it do; None where they do anything else.

    The lines write by the selection alone, and assign to variables that nothing else reads.
    """
    node, function = condition_at(span), function_at(span)
    if not isinstance(node, ast.If) or node.orelse or not is_at(node.test, span) or function is None:
        return None
    match node.body:
        case [ast.Continue()]:
            block = block_around(node, function)
            is_asked_empty = True
            lines = block[block.index(node) + 1 :] if block is not None else []
        case lines:
            is_asked_empty = False
    asked = _asked(node.test)
    if asked is None or not lines or asked.is_empty != is_asked_empty:
        return None
    selections = {asked.name} if asked.is_mask else _of_one_selection(asked.name, node, function)
    found = SelectedLines(set(selections), frozenset(each for line in lines for each in stored(line)))
    if not all(map(found.add, lines)) or not found.written or found.stored & selections:
        return None
    if is_read_outside(found.stored, lines, function):
        return None
    written = tuple(sorted(found.written - found.stored))
    called = tuple(sorted(found.called))
    return SelectedWrites(asked.name, asked.is_mask, written, called, answer=not asked.is_empty)


def is_read_outside(names: Set[str], lines: Sequence[ast.stmt], function: ast.FunctionDef) -> bool:
    """Return whether one of some variables may be read elsewhere than in some lines of a function."""
    inside = {id(each) for line in lines for each in ast.walk(line)}
    for each in ast.walk(function):
        match each:
            case ast.Name(name, ast.Load()) if name in names and id(each) not in inside:
                return True
            case ast.Global(shared) | ast.Nonlocal(shared) if not names.isdisjoint(shared):
                return True
    return False


class _Asked(NamedTuple):
    name: str
    is_mask: bool
    is_empty: bool


_ANY = re.compile(r"(?:(\w+)\.any\(\)|torch\.any\((\w+)\))(?:\.item\(\))?")
_COUNT = re.compile(r"(\w+)(?:\.numel\(\)|\.size\(0\)|\.shape\[0\]) (==|>|!=) 0")


def _asked(test: ast.expr) -> _Asked | None:
    """Return the variable of which a condition asks whether it selects something, or nothing."""
    if isinstance(test, ast.UnaryOp) and isinstance(test.op, ast.Not):
        found = _asked(test.operand)
        return found and found._replace(is_empty=not found.is_empty)
    text = ast.unparse(test)
    if (match := _ANY.fullmatch(text)) is not None:
        return _Asked(match[1] or match[2], is_mask=True, is_empty=False)
    match = _COUNT.fullmatch(text)
    return None if match is None else _Asked(match[1], is_mask=False, is_empty=match[2] == "==")


def _of_one_selection(name: str, before: ast.If, function: ast.FunctionDef) -> set[str]:
    """Return the variables that hold the indices of the same elements, one for each dimension."""
    made = assignments(name, function, before.lineno)
    return _names(made[-1].targets) if made and _is_selecting(made[-1].value) else {name}


def _is_selecting(value: ast.expr) -> bool:
    """Return whether a call gives indices of the elements that are set, one tensor for each dimension."""
    match value:
        case ast.Call(ast.Attribute(ast.Name("torch"), "where"), [_], []) | ast.Call(
            ast.Attribute(attr="nonzero"), keywords=[ast.keyword("as_tuple", ast.Constant(value=True))]
        ):
            return True
    return False


def _names(targets: Sequence[ast.expr]) -> set[str]:
    parts = [part for each in targets for part in (each.elts if isinstance(each, ast.Tuple) else [each])]
    return {part.id for part in parts if isinstance(part, ast.Name)}


@dataclass
class SelectedLines:
    """Lines that compute from what is selected, and write it.

    Args:
        selections: Variables that select the same elements. Those that the lines make of them are added.
        stored: Variables that the lines assign. None may be read before: it would be from the previous turn.
        mask, numbers: A mask with a row for each turn of a loop, and variables that number the turn.
    """

    selections: set[str]
    stored: Set[str]
    mask: str | None = None
    numbers: Set[str] = frozenset()
    assigned: set[str] = field(default_factory=set)
    written: set[str] = field(default_factory=set)
    called: set[str] = field(default_factory=set)
    # What a variable is another name of, `self.experts` of `expert = self.experts[i]`.
    _names: dict[str, str] = field(default_factory=dict)

    def add(self, line: ast.stmt) -> bool:
        """Note a line. Return whether it does nothing where nothing is selected."""
        match line:
            case ast.If(body=body, orelse=orelse, test=test):
                return self.is_quiet(test) and self._add_branches(body, orelse)
            case ast.With(items, body):
                contexts = (ast.unparse(item.context_expr) for item in items)
                return all(text.startswith("torch.") for text in contexts) and all(map(self.add, body))
            case ast.Assign([ast.Subscript(written, index)], value):
                return self.is_quiet(value) and self._writes(written, index)
            case ast.AugAssign(ast.Subscript(written, index), value=value):
                return self.is_quiet(value) and self._writes(written, index)
            case ast.Expr(ast.Call(ast.Attribute(written, name), args, [])) if name in _WRITES:
                place = 1 if name in ("index_add_", "index_copy_") else 0
                return (
                    len(args) > place and all(map(self.is_quiet, args)) and self._writes(written, args[place])
                )
            case ast.Assign(targets, value):
                names = _names(targets)
                is_named = all(
                    isinstance(each, ast.Name)
                    or (isinstance(each, ast.Tuple) and all(isinstance(part, ast.Name) for part in each.elts))
                    for each in targets
                )
                if self._selects_again(value):
                    self.selections |= names
                self.assigned |= names
                if len(names) == 1 and (of := _dotted(value)) is not None:
                    self._names.update(dict.fromkeys(names, of))
                return is_named and self.is_quiet(value)
        return False

    def _add_branches(self, *branches: Sequence[ast.stmt]) -> bool:
        """Note the lines of branches; assigned after them is what each assigns."""
        before, after = self.assigned, []
        for lines in branches:
            self.assigned = set(before)
            if not all(map(self.add, lines)):
                return False
            after.append(self.assigned)
        self.assigned = set.intersection(*after)
        return True

    def _writes(self, written: ast.expr, index: ast.expr) -> bool:
        while isinstance(written, ast.Subscript) and self.is_quiet(written.slice):
            written = written.value
        parts = index.elts if isinstance(index, ast.Tuple) else [index]
        is_selected = any(isinstance(part, ast.Name) and part.id in self.selections for part in parts)
        if not isinstance(written, ast.Name) or not is_selected or written.id in self.selections:
            return False
        self.written.add(written.id)
        return all(self.is_quiet(part) for part in parts)

    def _selects_again(self, value: ast.expr) -> bool:
        """Return whether a value is the indices of what a mask selects, or the row of one."""
        if not isinstance(value, ast.Call) or not _is_selecting(value):
            return False
        asked = value.args[0] if value.args else getattr(value.func, "value", None)
        match asked:
            case ast.Name(name):
                return name in self.selections
            case ast.Call(ast.Attribute(inner, "squeeze"), [ast.Constant(0)]):
                asked = inner
        match asked:
            case ast.Subscript(ast.Name(name), ast.Name(number)):
                return name == self.mask and number in self.numbers
        return False

    def is_quiet(self, value: ast.expr) -> bool:
        """Return whether computing a value changes nothing, draws nothing and works with no rows."""
        return not any(
            isinstance(node, _REFUSED_PARTS)
            or (isinstance(node, ast.Name) and node.id in self.stored - self.assigned)
            or (isinstance(node, ast.Call) and not self._is_quiet_call(node))
            or (isinstance(node, ast.Subscript) and self._takes_one_row(node))
            for node in ast.walk(value)
        )

    def _is_quiet_call(self, call: ast.Call) -> bool:
        """Return whether a call does no more than compute.

        A module may change what it is given in place: it has to be given what the lines made.
        """
        match call.func:
            case ast.Name(name) | ast.Attribute(attr=name):
                if name in _REFUSED or name.startswith("rand") or name.endswith("_"):
                    return False
        if _root_name(call.func) not in _FUNCTIONS and (called := _dotted(call.func)) is not None:
            root, dot, rest = called.partition(".")
            if not dot and root in self.assigned - self._names.keys():
                return False  # What was made in the lines.
            self.called.add(self._names.get(root, root) + dot + rest)
        given = (*call.args, *(each.value for each in call.keywords))
        if not any(isinstance(each, ast.Name) and each.id not in self._own for each in given):
            return True
        is_in_place = any(isinstance(each, ast.Constant) and each.value is True for each in given)
        match call.func:
            case ast.Attribute(attr=name):
                return name in _CONVERSIONS or (_root_name(call.func) in _FUNCTIONS and not is_in_place)
        return False

    def _takes_one_row(self, read: ast.Subscript) -> bool:
        parts = read.slice.elts if isinstance(read.slice, ast.Tuple) else [read.slice]
        is_number = any(isinstance(part, ast.Constant) and isinstance(part.value, int) for part in parts)
        names = {node.id for node in ast.walk(read.value) if isinstance(node, ast.Name)}
        return is_number and not names.isdisjoint(self._own)

    @property
    def _own(self) -> set[str]:
        return self.assigned | self.selections


def _root_name(value: ast.expr) -> str | None:
    """Return the variable that an expression of attributes, indices and calls starts with."""
    while isinstance(value, (ast.Attribute, ast.Subscript, ast.Call)):
        value = value.func if isinstance(value, ast.Call) else value.value
    return value.id if isinstance(value, ast.Name) else None


def _dotted(called: ast.expr) -> str | None:
    """Return the name of what is called, or of the container that it is taken from; None of a result."""
    while isinstance(called, ast.Subscript):
        called = called.value
    match called:
        case ast.Name(name):
            return name
        case ast.Attribute(owner, name) if (of := _dotted(owner)) is not None:
            return f"{of}.{name}"
    return None
