"""Suggest what to write in place of a data-dependent line, derived from the line itself."""

from __future__ import annotations

import ast
import re
from collections.abc import Callable, Mapping
from linecache import getlines
from typing import Any

from fakexport.diagnostics import Span, condition_at, function_at, is_formatted, source_text

_EXPERTS = 'set `"experts_implementation": "batched_mm"` in the config'
_ITEM = (
    "read it with `.item()` and not with `int()`, and state its bounds: `n = {0}.item()`, "
    "`torch._check(n >= 0)`, `torch._check(n <= limit)`; if it is the index of a list, compute all "
    "results and pick one: `torch.stack(results)[{0}]`"
)


def branch_repair(span: Span | None) -> str:
    """Return what to do about a condition on data."""
    expression = _expression(span)
    condition = None if span is None else condition_at(span)
    match expression:
        case ast.Call(func=ast.Attribute(attr="equal"), args=[first, second]):
            return f"compare with `({_text(first)} == {_text(second)}).all()`, and choose with `torch.where`"
        case ast.Call(func=ast.Attribute(attr="allclose"), args=[first, second]):
            close = f"torch.isclose({_text(first)}, {_text(second)}).all()"
            return f"compare with `{close}`, and choose with `torch.where`"
        case ast.Call(func=ast.Name(id="sorted" | "max" | "min" | "any" | "all" as name), args=[value]):
            method = "sort().values" if name == "sorted" else f"{name}()"
            return f"use `{_text(value)}.{method}` in place of Python's `{name}`"
        case ast.Call(func=ast.Name(id="bool"), args=[value]):
            return f"keep the tensor `{_text(value)}`, without `bool`, and choose with `torch.where`"
        case ast.Compare(left=value, ops=[ast.In() | ast.NotIn()], comparators=[items]):
            listed = re.sub(r"^\((.*?),?\)$", r"[\1]", _text(items))
            isin = f"torch.isin({_text(value)}, torch.tensor({listed}, device={_text(value)}.device))"
            return f"ask with `{isin}`, and choose with `torch.where`"
        case ast.Call(func=function) if "distributions." in _text(function):
            assert isinstance(expression, ast.Call)
            others = [each for each in expression.keywords if each.arg != "validate_args"]
            unchecked = ast.keyword("validate_args", ast.Constant(False))
            call = ast.Call(function, expression.args, [*others, unchecked])
            return f"leave the check of its arguments out: `{_text(call)}`"
    if condition is not None and expression is not None:
        return _statement_repair(condition, expression, span)
    return general_repair(GENERAL, span)


def _statement_repair(
    condition: ast.If | ast.IfExp | ast.While | ast.Assert, asked: ast.expr, span: Span | None
) -> str:
    test = _text(condition.test)
    mask = _mask(asked)
    match condition:
        case ast.Assert():
            return f"skip the check while exporting: `assert torch.compiler.is_exporting() or {_text(asked)}`"
        case ast.If(body=[ast.Raise() | ast.Break() as left], orelse=[]):
            wrapped = f"({test})" if isinstance(condition.test, ast.BoolOp) else test
            skipped = "check" if isinstance(left, ast.Raise) else "early end of the loop"
            return (
                f"skip the {skipped} while exporting: `if not torch.compiler.is_exporting() and {wrapped}:`"
            )
        case ast.IfExp():
            chosen = f"torch.where({test}, {_text(condition.body)}, {_text(condition.orelse)})"
            return (
                f"compute both sides: `{chosen}`"
                if condition.test is asked or test == _text(asked)
                else general_repair(GENERAL, span)
            )
        case ast.If(
            body=[ast.Assign(targets=[ast.Name(id=name)], value=ast.Constant(value=None))], orelse=[]
        ):
            return f"remove these lines: `{name}` is then always applied, even where it masks nothing"
        case ast.If(body=[ast.Assign(targets=[ast.Subscript(slice=ast.Name(id=name))])], orelse=[]):
            if name == mask and test == _text(asked):
                return f"remove the condition: where nothing is set in `{mask}`, its line changes nothing"
    if mask is not None and isinstance(condition, ast.If) and not condition.orelse and test != _text(asked):
        return (
            f"leave `{_text(asked)}` out of the condition: `{mask}` is then always applied, which changes "
            "nothing where it masks nothing"
        )
    return general_repair(GENERAL, span)


def general_repair(repair: str, span: Span | None) -> str:
    """Return what is said of every line of a kind; in a library's code, that no setting is known."""
    is_library = span is not None and "site-packages" in span.path
    return (
        f"no fix is known that leaves the library's code as it is; in the code: {repair}"
        if is_library
        else repair
    )


GENERAL = "compute both sides and choose with `torch.where`, or branch with `torch.cond`"


def number_repair(span: Span | None) -> str:
    """Return what to do where Python needs a number."""
    match _expression(span):
        case ast.Call(func=ast.Name(id="range"), args=[*_, _]):
            return (
                "loop a fixed number of times, and keep finished results with `torch.where(i < steps, new, "
                "old)`"
            )
        case ast.Call(func=ast.Name(id="int" | "float"), args=[value]):
            return _ITEM.format(_text(value).removesuffix(".item()"))
        case ast.Call(func=ast.Attribute(value=ast.Name(id="math"), attr=name)):
            return f"compute it on the tensor, without `.item()`: `torch.{name}`"
        case ast.Call(func=ast.Name(id="max" | "min" as name), args=[value]):
            return f"use `{_text(value)}.{name}().item()` in place of Python's `{name}`"
    if (given := _taken_as_it_is(span)) is not None:
        return given
    if span is not None and is_formatted(span):
        return "skip the text while exporting: `if not torch.compiler.is_exporting():`"
    return general_repair(
        "use a number that is known without the data: a configuration value or a shape", span
    )


PRECOMPUTED = re.compile(r"pass `(\w+)`, which")


def _taken_as_it_is(span: Span | None) -> str | None:
    """Return which input to pass in place of what a function computes, where it returns that one if it is
    passed; None where it takes none.
    """
    function = None if span is None else function_at(span)
    for node in function.body if function is not None else ():
        match node:
            case ast.If(test=test, body=[ast.Return(value=ast.Name(id=returned))]) if function is not None:
                popped = {
                    part.target.id: _text(part.value.args[0]).strip("'\"")
                    for part in ast.walk(test)
                    if isinstance(part, ast.NamedExpr)
                    and isinstance(part.value, ast.Call)
                    and _text(part.value.func).endswith("kwargs.pop")
                    and part.value.args
                }
                if returned not in popped:
                    continue
                key = popped[returned]
                dtypes = re.findall(r"dtype=torch\.(\w+)", _text(function.body[-1]))
                return (
                    f"pass `{key}`, which `{function.name}` returns as it is, as an input of the program, in "
                    f"addition to the others: --input '{key}={dtypes[-1] if dtypes else 'DTYPE'}[DIMS]'"
                )
    return None


def index_repair(span: Span | None, variables: Mapping[str, Any]) -> str | None:
    """Return what to do where the index of a tensor has sequences of 0-d tensors; None if none is indexed.

    Args:
        span: The line.
        variables: The local variables of its frame.
    """

    def stacked(part: ast.expr) -> str:
        is_sequence = isinstance(_value(part, variables), (list, tuple))
        return f"torch.stack({_text(part)})" if is_sequence else _text(part)

    match _expression(span):
        case ast.Subscript(value=value, slice=index):
            parts = index.elts if isinstance(index, ast.Tuple) else [index]
            better = f"{_text(value)}[{', '.join(map(stacked, parts))}]"
            if any(stacked(part) != _text(part) for part in parts):
                return f"index with a tensor in place of each sequence of 0-d tensors: `{better}`"
    return None


def cast_repair(span: Span | None, variables: Mapping[str, Any]) -> str | None:
    """Return how to call a module with cast or moved weights, in place of replacing them.

    Args:
        span: The line.
        variables: The local variables of its frame.
    Returns:
        None where it is called otherwise than once with a value, or has more than weights to move.
    """
    expression, function = _expression(span), None if span is None else function_at(span)
    match expression:
        case ast.Call(
            func=ast.Attribute(value=ast.Attribute(value=ast.Name(id="self")) as module, attr=attr)
        ):
            text = _text(module)
            moved = _text(
                ast.Call(ast.Attribute(ast.Name("each"), attr), expression.args, expression.keywords)
            )
        case _:
            return None
    found = _value(module, variables)
    if any(True for _ in getattr(found, "buffers", tuple)()):
        return None
    calls = [
        node
        for node in (ast.walk(function) if function is not None else ())
        if isinstance(node, ast.Call) and _text(node.func) == text
    ]
    match calls:
        case [ast.Call(args=[ast.expr() as value], keywords=[]) as call] if not isinstance(
            value, ast.Starred
        ):
            weights = f"{{name: {moved} for name, each in {text}.named_parameters()}}"
            better = f"torch.func.functional_call({text}, {weights}, {_text(value)})"
            return f"remove this line, and write `{better}` in place of `{_text(call)}`"
    return None


def size_repair(span: Span | None, variables: Mapping[str, Any]) -> str:
    """Return what to do where a size must be known.

    Args:
        span: The line.
        variables: The local variables of its frame.
    """
    expression = _expression(span)
    condition = None if span is None else condition_at(span)
    if (
        isinstance(expression, ast.Call)
        and isinstance(expression.func, ast.Name)
        and expression.func.id == "len"
    ):
        return (
            f"use `{_text(expression.args[0])}.shape[0]` in place of `len`, and state what always holds "
            "before the comparison: `torch._check(n > 2)`; or count with a sum and choose with "
            "`torch.where`"
        )
    match condition:
        case ast.If(body=[ast.Continue()], orelse=[], test=ast.Compare(ops=[ast.Eq()])):
            return (
                "skip the check while exporting, where the rest of the loop adds nothing for a size of 0: "
                f"`if not torch.compiler.is_exporting() and {_text(condition.test)}:`"
            )
    if condition is not None:
        return f"{_one_way(expression or condition.test)}; if neither does, mask with `torch.where`"
    if isinstance(expression, (ast.ListComp, ast.Name)):
        loop = (
            _every_index(expression, span, variables)
            if isinstance(expression, ast.Name) and span is not None
            else None
        )
        loop = f"loop over every possible index, {loop or '`for i in range(number):`'}, {_ADDS_NOTHING}"
        # Only these have another implementation; the setting changes nothing for others (LongCat-Flash).
        has_others = span is not None and "@use_experts_implementation" in "".join(getlines(span.path))
        return f"{_EXPERTS}, or {loop}" if has_others else loop
    if isinstance(expression, ast.Compare):
        return _one_way(expression)
    return general_repair(
        "keep the shape fixed and mask with `torch.where`, or bound the size with `torch._check`", span
    )


_ADDS_NOTHING = "where an index without rows adds nothing"


def _every_index(rows: ast.Name, span: Span, variables: Mapping[str, Any]) -> str | None:
    """Return what a loop over the rows of `nonzero()` runs over in place of them: each index, with a row or
    without; None where that cannot be said of the code.
    """
    function = function_at(span)
    nodes = list(ast.walk(function)) if function is not None else []
    loop = next((n for n in nodes if isinstance(n, ast.For) and n.iter.lineno == span.line), None)
    made = [
        node.value
        for node in nodes
        if isinstance(node, ast.Assign)
        and node.lineno < span.line
        and [_text(target) for target in node.targets] == [rows.id]
    ]
    if loop is None or not made or not isinstance(loop.target, ast.Name) or _text(loop.iter) != rows.id:
        return None
    each = loop.target.id
    match made[-1]:
        case (
            ast.Call(func=ast.Attribute(value=ast.Name(id="torch"), attr="nonzero"), args=[counted])
            | ast.Call(func=ast.Attribute(value=counted, attr="nonzero"), args=[])
        ):
            number = f"range({_length(counted, variables)})"
        case _:
            return None
    read, has_others = _reads(loop, each)
    shape: tuple[Any, ...] = getattr(variables.get(rows.id), "shape", ())
    is_number, is_row = len(shape) == 1, len(shape) == 2 and shape[1] == 1
    if is_row and not any("item()" in text or text.startswith("int(") for text in read):
        return f"with `[[i] for i in {number}]` in place of `{rows.id}`"
    if is_number or (is_row and not has_others):
        changed = "".join(f" and `{each}` in place of `{text}`" for text in sorted(read))
        return f"with `{number}` in place of `{rows.id}`{changed}"
    return None


def _reads(loop: ast.For, name: str) -> tuple[set[str], bool]:
    """Return how the body of a loop reads the number of a row, and whether it uses the row otherwise too."""
    read, covered = set(), set()
    nodes = [node for statement in loop.body for node in ast.walk(statement)]
    for node in nodes:
        if id(node) in covered:
            continue
        match node:
            case (
                ast.Call(
                    func=ast.Name(id="int"), args=[ast.Call(func=ast.Attribute(value=value, attr="item"))]
                )
                | ast.Call(func=ast.Name(id="int"), args=[value])
                | ast.Call(func=ast.Attribute(value=value, attr="item"))
                | ast.Subscript(value=value, slice=ast.Constant(value=0))
            ) if isinstance(value, ast.Name) and value.id == name:
                read.add(_text(node))
                covered |= {id(inner) for inner in ast.walk(node)}
    return read, any(isinstance(n, ast.Name) and n.id == name and id(n) not in covered for n in nodes)


def _length(counted: ast.expr, variables: Mapping[str, Any]) -> str:
    """Return the number of elements of the vector whose nonzero elements are counted."""
    match counted:
        case ast.Call(
            func=ast.Attribute(value=ast.Name(id="torch"), attr="greater" | "gt" | "ne"), args=[of, _]
        ):
            return _length(of, variables)
        case ast.Compare(left=of, comparators=[ast.Constant()]):
            return _length(of, variables)
        case ast.Call(
            func=ast.Attribute(value=ast.Name(id=of), attr="sum"), keywords=[ast.keyword("dim") as dims]
        ):
            # Of all dimensions but the first.
            ndim = getattr(variables.get(of), "ndim", 0)
            if ndim > 1 and sorted(map(int, re.findall(r"-?\d+", _text(dims.value)))) == list(
                range(1 - ndim, 0)
            ):
                return f"{of}.shape[0]"
    return f"{_text(counted)}.shape[0]"


def _one_way(expression: ast.expr) -> str:
    """Return how to say which way a condition on a size always goes; that nothing is empty comes first."""
    ways = [_text(expression), _opposite(expression)]
    if isinstance(expression, ast.Compare) and isinstance(expression.ops[0], ast.Eq):
        ways.reverse()
    first, second = (f"`torch._check({way})`" for way in ways)
    return f"state before this line what always holds: {first}, or {second}"


def _opposite(expression: ast.expr) -> str:
    pairs: dict[type[ast.cmpop], ast.cmpop] = {
        ast.Eq: ast.NotEq(),
        ast.NotEq: ast.Eq(),
        ast.Gt: ast.LtE(),
        ast.GtE: ast.Lt(),
        ast.Lt: ast.GtE(),
        ast.LtE: ast.Gt(),
    }
    match expression:
        case ast.Compare(left=left, ops=[sign], comparators=[right]) if type(sign) in pairs:
            return _text(ast.Compare(left, [pairs[type(sign)]], [right]))
    return f"not ({_text(expression)})"


_Repair = Callable[[re.Match[str]], str]
_FORWARD: tuple[tuple[re.Pattern[str], _Repair], ...] = (
    (
        re.compile(r"forward\(\) missing \d+ required positional arguments?: (.+)"),
        lambda m: f"pass the missing input with --input: {m[1]}",
    ),
    (
        re.compile(r"[Mm]ake sure that `(\w+)` (?:is|are) passed"),
        lambda m: f"pass the missing input with --input: {m[1]}",
    ),
    (
        re.compile(
            r"expected scalar type \S*(?:float32|Float|bfloat16|BFloat16|float16|Half) but found"
            r"|Unsupported dtype (?:BFloat16|Half)",
        ),
        lambda m: (
            f"{IN_FLOAT32}, or convert at this line, so that its operands have one dtype that it accepts"
        ),
    ),
    (
        re.compile(r"'_OpNamespace' '(\w+)' object has no attribute '(\w+)'"),
        lambda m: f"name the library that registers {m[1]}::{m[2]} with --library",
    ),
    (
        re.compile(r"No module named '([\w.]+)'"),
        lambda m: (
            f"install the package that provides `{m[1]}` where fakexport runs, or do not import it here"
        ),
    ),
    (
        re.compile(r"same reduction dim, but got \[(?:.*, )?(\d+)\] X \[(\d+), \d+\]"),
        lambda m: (
            f"the input has {m[1]} features and the weight expects {m[2]}: create the layer for {m[1]} "
            f"(`in_features={m[1]}`), or pass a model input of which this line gets {m[2]}"
        ),
    ),
    (
        re.compile(r"expected input\[.*?\] to have (\d+) channels, but got (\d+) channels"),
        lambda m: (
            f"the input has {m[2]} channels and the weight expects {m[1]}: create the layer for {m[2]} "
            f"(`in_channels={m[2]}`), or pass a model input of which this line gets {m[1]}"
        ),
    ),
    (
        re.compile(r"shape '.*?' is invalid for input of size (\d+)"),
        lambda m: f"use sizes whose product is {m[1]}; one of them may be -1, which is inferred",
    ),
    (
        re.compile(r"Sizes of tensors must match except in dimension \S+ Expected (\d+) in dimension (\d+)"),
        lambda m: f"make the tensors have size {m[1]} in dimension {m[2]}, as the first one is",
    ),
    (
        re.compile(r"Attempting to broadcast a dimension of length \d+ at (-?\d+)!.*to (\[.*?\])", re.DOTALL),
        lambda m: f"make the other tensor's size at {m[1]} that of {m[2]}, or 1",
    ),
    (
        re.compile(r"'indices' to have one of the following scalar types: Long, Int"),
        lambda m: "pass integer indices: `.long()` here, or an input of int64",
    ),
    (
        re.compile(r"'(NoneType|bool|int|float|str|tuple|list|dict)' object has no attribute '(\w+)'"),
        lambda m: (
            f"pass an input, or set what the constructor reads, so that the value before `.{m[2]}` is not "
            f"{'None' if m[1] == 'NoneType' else f'of type {m[1]}'}"
        ),
    ),
    (
        re.compile(r"'(\w+Config)' object has no attribute '(\w+)'"),
        lambda m: f"set `{m[2]}` in the config: {m[1]} has no default of it",
    ),
    (
        re.compile(r"Could not find an? `(\w+)` argument in the config, or it is not set"),
        lambda m: f"set `{m[1]}` in the config: it is empty",
    ),
    (
        re.compile(r"'(\w+)' object has no attribute '(\w+)'"),
        lambda m: f"assign `self.{m[2]}` in the constructor of {m[1]}, or correct the name",
    ),
    (
        re.compile(r"Cannot access data pointer"),
        lambda m: (
            "tensors have no memory while the model is traced: do this in the constructor, or compute with "
            "torch operators"
        ),
    ),
    (
        re.compile(
            r"a sparse COO tensor on \w+:\d+ cannot be traced|SparseCsr(?:CPU|CUDA)"
            r"|zeros_sparse_compressed expected"
        ),
        lambda m: (
            "keep the tensors dense for this device, `table.to_dense()` where the model creates them, and "
            "`x @ y` in place of `torch.sparse.mm(x.to_sparse(), y)`: and no archive stores sparse tensors"
        ),
    ),
    (
        re.compile(r"Sparse (?:CSR|CSC|BSR|BSC) tensors do not have strides"),
        lambda m: (
            "register the sparse tensor with `self.register_buffer(name, tensor)`: torch.export supports it "
            "as a parameter or a buffer, but not as a plain attribute"
        ),
    ),
    (
        re.compile(r"DTensor"),
        lambda m: (
            "pass the module before it is distributed, without `distribute_module` and `parallelize_module`; "
            "an hf: model is sharded by `--parallel tp=N`, which exports the program of each rank"
        ),
    ),
)
IN_FLOAT32 = "check the model in float32, `--dtype float32`"
# What starts so is about the call, and not about the model.
OF_CALL = re.compile("pass the missing input|name the library|install the package|check the model in float32")
OF_CONFIG = re.compile(r"set `\w+` in the config")
NO_REPAIR = (
    "no fix is known for this error: if eager mode raises it too, compare the shapes and dtypes at this line "
    "with what the operator expects; if not, move the line out of `forward`"
)
_NONE_IN_CONSTRUCTOR = (
    "no fix is known for this error: if plain Python raises it too, correct the arguments at this line; if "
    "not, move what needs data into a method that is called once the weights are loaded"
)


def forward_repair(message: str) -> str:
    """Return what to do about an error of `forward`, or that nothing is known."""
    found = ((pattern.search(message), repair) for pattern, repair in _FORWARD)
    return next((repair(match) for match, repair in found if match), NO_REPAIR)


def empty_setting_repair(span: Span | None, variables: Mapping[str, Any]) -> str | None:
    """Return which setting of a config to set, where the marked line reads one that is None.

    It reads the setting itself, or an attribute that a constructor in this file takes from one.

    Args:
        span: The line.
        variables: The local variables of its frame.
    """
    names: set[str] = set()
    for node in ast.walk(_expression(span) or ast.Constant(None)):
        if not isinstance(node, ast.Attribute) or span is None or _value(node, variables) is not None:
            continue
        owner = _text(node.value)
        if owner.rpartition(".")[2] == "config" and hasattr(_value(node.value, variables), node.attr):
            names.add(node.attr)
        elif owner == "self" and hasattr(variables.get("self"), node.attr):
            taken = rf"self\.{re.escape(node.attr)}\s*=\s*(?:self\.)?config\.(\w+)\n"
            names |= set(re.findall(taken, "".join(getlines(span.path))))
    return f"set `{names.pop()}` in the config: it is empty" if len(names) == 1 else None


def _value(node: ast.expr, variables: Mapping[str, Any]) -> Any:
    """Return the value of a name, or of an attribute of one."""
    if isinstance(node, ast.Name):
        return variables.get(node.id)
    return (
        getattr(_value(node.value, variables), node.attr, None) if isinstance(node, ast.Attribute) else None
    )


def construction_repair(message: str) -> str:
    """Return what to do about an error of a constructor, or that nothing is known."""
    found = forward_repair(message)
    return _NONE_IN_CONSTRUCTOR if found == NO_REPAIR else found


def _mask(asked: ast.expr) -> str | None:
    match asked:
        case ast.Call(func=ast.Attribute(value=ast.Name(id=name), attr="any" | "all")):
            return name
    return None


def _expression(span: Span | None) -> ast.expr | None:
    try:
        return ast.parse(source_text(span) or "", mode="eval").body
    except SyntaxError:
        return None


def _text(node: ast.AST) -> str:
    return ast.unparse(node)
