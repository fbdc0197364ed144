"""Find data-dependent conditions and loops that can be traced, because they only write selected elements.

Examples are `if mask.any(): x[mask] = 0`, `if rows.numel() == 0: continue` in a loop over experts, and
`for e in mask.sum((-1, -2)).nonzero():`, a loop over the experts that have tokens. If a mask or index tensor
selects nothing, such lines compute with empty tensors and write nothing, so they can always run.
"""

from __future__ import annotations

import ast
import re
from collections.abc import Sequence, Set
from dataclasses import dataclass, field

from fakexport.rules.diagnostics import Span, condition_at, function_at, is_at

# Calls that fail on empty tensors, draw random numbers, change their object, or read a value.
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
    """Lines of code that do nothing but write the elements that a variable selects.

    Args:
        selection: The variable: a mask, or indices.
        is_mask: Whether the variable must be a boolean mask.
        written: Variables whose selected elements are written.
        called: Callables other than torch functions, such as `self.experts`. They must not change state.
    """

    selection: str
    is_mask: bool
    written: tuple[str, ...]
    called: tuple[str, ...]


def selected_writes(span: Span) -> tuple[SelectedWrites, bool] | None:
    """Analyze an `if` that tests whether anything is selected.

    Return None if the guarded lines do anything other than write selected elements, or if they assign
    variables that other lines read.

    Returns:
        The guarded lines, and the value of the condition if something is selected.
    """
    node, function = condition_at(span), function_at(span)
    if not isinstance(node, ast.If) or node.orelse or not is_at(node.test, span) or function is None:
        return None
    if (asked := _asked(node.test)) is None:
        return None
    name, is_mask, is_empty = asked
    match node.body:
        case [ast.Continue()]:
            loops = (each.body for each in ast.walk(function) if isinstance(each, ast.For))
            block = next((body for body in loops if node in body), [])
            lines, is_skip = block[block.index(node) + 1 :] if block else [], True
        case lines:
            is_skip = False
    made = _assignments(name, function, node.lineno)
    is_one_of_several = not is_mask and made and _is_selecting(made[-1].value)
    selections = _stored(made[-1].targets) if is_one_of_several else {name}
    found = _SelectedLines(set(selections), _stored(lines))
    if is_empty != is_skip or found.stored & selections or not all(map(found.add, lines)):
        return None
    writes = found.writes(name, is_mask, found.stored, lines, function)
    return None if writes is None else (writes, not is_empty)


def visited_rows(span: Span) -> tuple[SelectedWrites, tuple[int, ...]] | None:
    """Analyze a loop over the nonzero rows of a mask.

    Return None if an iteration for a row of zeros would have an effect.

    Returns:
        The lines of the loop, and the dimensions over which the mask is summed. These must be all dimensions
        except the first.
    """
    function = function_at(span)
    loops = () if function is None else ast.walk(function)
    match [each for each in loops if isinstance(each, ast.For) and is_at(each.iter, span)]:
        case [ast.For(ast.Name(row), ast.Name(rows), body, []) as loop, *_] if function is not None:
            made = _assignments(rows, function, loop.lineno)
        case _:
            return None
    counted = _counted(made[-1].value) if made else None
    if counted is None or _is_changed(counted[0], function, made[-1].lineno, loop.end_lineno or 0):
        return None
    mask, dims = counted
    found = _SelectedLines(set(), _stored(body) - {row}, mask, {row})
    # Uses of the row that work for a tensor and also for a list with one number.
    fit = re.compile(rf"(?<![.\w])(?:{row}\[0\]|{row}\.item\(\)|int\({row}\)|{mask}\[{row}\])")
    number = re.compile(rf"(?:int\()?{row}(?:\[0\])?(?:\.item\(\))?\)?")
    is_row = True
    for line in body:
        match line:
            case ast.Assign([ast.Name(name)], value) if not isinstance(value, ast.Name) and number.fullmatch(
                ast.unparse(value)
            ):
                found.numbers.add(name)
                found.assigned.add(name)
                is_row = is_row and name != row
            case _ if is_row and re.search(rf"\b{row}\b", fit.sub("", ast.unparse(line))):
                return None
            case ast.If(test, [ast.Continue()], []) if found.is_quiet(test):
                pass  # The skipped rows have no effect.
            case _ if not found.add(line):
                return None
    is_one_hot = _is_one_hot(mask, _assignments(mask, function, made[-1].lineno))
    writes = found.writes(mask, not is_one_hot, {*found.stored, row}, body, function)
    return None if writes is None else (writes, dims)


def _assignments(name: str, function: ast.AST, before: int) -> list[ast.Assign]:
    made = (node for node in ast.walk(function) if isinstance(node, ast.Assign) and node.lineno < before)
    return sorted((node for node in made if name in _stored([node])), key=lambda node: node.lineno)


def _stored(lines: Sequence[ast.AST]) -> set[str]:
    names = (node for line in lines for node in ast.walk(line) if isinstance(node, ast.Name))
    return {node.id for node in names if isinstance(node.ctx, ast.Store)}


def _is_changed(name: str, function: ast.FunctionDef, after: int, until: int) -> bool:
    """Return whether a variable may be assigned or modified between the lines `after` and `until`."""
    for node in ast.walk(function):
        match node:
            case ast.Name(found, ast.Store()) | ast.Subscript(ast.Name(found), ctx=ast.Store()):
                attribute = "_"
            case ast.Call(ast.Attribute(ast.Name(found), attribute)):
                pass
            case _:
                continue
        if found == name and attribute.endswith("_") and after < node.lineno <= until:
            return True
    return False


_ANY = re.compile(r"(?:(\w+)\.any\(\)|torch\.any\((\w+)\))(?:\.item\(\))?")
_COUNT = re.compile(r"(\w+)(?:\.numel\(\)|\.size\(0\)|\.shape\[0\]) (==|>|!=) 0")


def _asked(test: ast.expr) -> tuple[str, bool, bool] | None:
    """Parse a test such as `mask.any()` or `rows.numel() == 0`. Return None for other conditions.

    Returns:
        The variable, whether it must be a mask, and whether the test is true if nothing is selected.
    """
    if isinstance(test, ast.UnaryOp) and isinstance(test.op, ast.Not):
        found = _asked(test.operand)
        return found and (*found[:2], not found[2])
    text = ast.unparse(test)
    if (match := _ANY.fullmatch(text)) is not None:
        return match[1] or match[2], True, False
    match = _COUNT.fullmatch(text)
    return None if match is None else (match[1], False, match[2] == "==")


def _is_one_hot(mask: str, made: list[ast.Assign]) -> bool:
    """Return whether a mask was created by `one_hot` and then only permuted."""
    texts = [ast.unparse(each.value) for each in made]
    own = re.compile(rf"{re.escape(mask)}\.(?:permute|transpose)\([-0-9, ]*\)")
    return bool(texts) and "one_hot(" in texts[0] and all(map(own.fullmatch, texts[1:]))


_SUM = r"(\w+)\.sum\((?:dim=)?([-0-9, ()\[\]]+)\)"
_COUNTS = (_SUM, rf"torch\.(?:greater|gt|ne)\({_SUM}, 0\)", rf"\(?{_SUM} (?:>|!=) 0\)?")
_CALLS = (r"torch\.nonzero\({}(?:, as_tuple=False)?\)", r"{}\.nonzero\((?:as_tuple=False)?\)")
_COUNTED = [re.compile(call.format(count)) for call in _CALLS for count in _COUNTS]


def _counted(value: ast.expr) -> tuple[str, tuple[int, ...]] | None:
    """Parse `mask.sum(dims).nonzero()`. Return the mask and the dimensions, or None for other expressions."""
    text = ast.unparse(value)
    match = next((match for form in _COUNTED if (match := form.fullmatch(text)) is not None), None)
    return None if match is None else (match[1], tuple(map(int, re.findall(r"-?[0-9]+", match[2]))))


def _is_selecting(value: ast.expr) -> bool:
    """Return whether a call returns the indices of nonzero elements, one tensor per dimension."""
    match value:
        case ast.Call(ast.Attribute(ast.Name("torch"), "where"), [_], []) | ast.Call(
            ast.Attribute(attr="nonzero"), keywords=[ast.keyword("as_tuple", ast.Constant(value=True))]
        ):
            return True
    return False


@dataclass
class _SelectedLines:
    """Check that lines only compute with, and write to, the elements that a mask or index tensor selects.

    Args:
        selections: Variables that select the same elements. Selections that the lines derive are added.
        stored: Variables that the lines assign. Reading one before its assignment is rejected, because the
            value would be from the previous iteration of a loop.
        mask, numbers: A mask with one row per loop iteration, and variables with the iteration's index.
    """

    selections: set[str]
    stored: Set[str]
    mask: str | None = None
    numbers: set[str] = field(default_factory=set)
    assigned: set[str] = field(default_factory=set)
    written: set[str] = field(default_factory=set)
    called: set[str] = field(default_factory=set)
    # Variable -> expression that it is an alias of, such as `self.experts` after `expert = self.experts[i]`.
    _names: dict[str, str] = field(default_factory=dict)

    def writes(
        self,
        selection: str,
        is_mask: bool,
        own: Set[str],
        lines: Sequence[ast.stmt],
        function: ast.FunctionDef,
    ) -> SelectedWrites | None:
        """Return the analyzed lines. None if they write nothing, or if other lines may read one of `own`."""
        inside = {id(each) for line in lines for each in ast.walk(line)}
        for each in ast.walk(function):
            match each:
                case ast.Name(name, ast.Load()) if name in own and id(each) not in inside:
                    return None
                case ast.Global(shared) | ast.Nonlocal(shared) if not own.isdisjoint(shared):
                    return None
        written, called = sorted(self.written - self.stored), sorted(self.called)
        return SelectedWrites(selection, is_mask, tuple(written), tuple(called)) if self.written else None

    def add(self, line: ast.stmt) -> bool:
        """Analyze a statement. Return whether it has no effect when the selection is empty."""
        match line:
            case ast.If(body=body, orelse=orelse, test=test):
                return self.is_quiet(test) and self._add_branches(body, orelse)
            case ast.With(items, body):
                contexts = (ast.unparse(item.context_expr) for item in items)
                return all(text.startswith("torch.") for text in contexts) and all(map(self.add, body))
            case ast.Assign([ast.Subscript(written, index)], value) | ast.AugAssign(
                ast.Subscript(written, index), value=value
            ):
                return self.is_quiet(value) and self._writes(written, index)
            case ast.Expr(ast.Call(ast.Attribute(written, name), args, [])) if name in _WRITES:
                place = 1 if name in ("index_add_", "index_copy_") else 0
                return (
                    len(args) > place and all(map(self.is_quiet, args)) and self._writes(written, args[place])
                )
            case ast.Assign(targets, value):
                names = _stored(targets)
                parts = (part for each in targets for part in ast.walk(each))
                is_named = all(isinstance(part, (ast.Name, ast.Tuple, ast.Store)) for part in parts)
                if self._selects_again(value):
                    self.selections |= names
                self.assigned |= names
                if len(names) == 1 and (of := _dotted(value)) is not None:
                    self._names.update(dict.fromkeys(names, of))
                return is_named and self.is_quiet(value)
        return False

    def _add_branches(self, *branches: Sequence[ast.stmt]) -> bool:
        """Analyze branches. Only variables that all branches assign count as assigned after them."""
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
        """Return whether a value is the result of `nonzero` for a selection or for a row of the mask."""
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
        """Return whether an expression has no effect, draws no random numbers, and works on empty tensors."""
        return not any(
            isinstance(node, _REFUSED_PARTS)
            or (isinstance(node, ast.Name) and node.id in self.stored - self.assigned)
            or (isinstance(node, ast.Call) and not self._is_quiet_call(node))
            or (isinstance(node, ast.Subscript) and self._takes_one_row(node))
            for node in ast.walk(value)
        )

    def _is_quiet_call(self, call: ast.Call) -> bool:
        """Return whether a call only computes, without side effects.

        A module may modify its arguments in place, so the arguments must be tensors that the lines themselves
        have computed.
        """
        match call.func:
            case ast.Name(name) | ast.Attribute(attr=name):
                if name in _REFUSED or name.startswith("rand") or name.endswith("_"):
                    return False
        if _root_name(call.func) not in _FUNCTIONS and (called := _dotted(call.func)) is not None:
            root, dot, rest = called.partition(".")
            if not dot and root in self.assigned - self._names.keys():
                return False  # It was computed in these lines.
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
    while isinstance(value, (ast.Attribute, ast.Subscript, ast.Call)):
        value = value.func if isinstance(value, ast.Call) else value.value
    return value.id if isinstance(value, ast.Name) else None


def _dotted(called: ast.expr) -> str | None:
    while isinstance(called, ast.Subscript):
        called = called.value
    match called:
        case ast.Name(name):
            return name
        case ast.Attribute(owner, name) if (of := _dotted(owner)) is not None:
            return f"{of}.{name}"
    return None
