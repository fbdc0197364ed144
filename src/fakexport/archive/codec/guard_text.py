"""Check the guards of a program: Python text that torch will execute.

Only syntax that torch prints is accepted: sizes, strides and values of inputs, numbers, arithmetic,
comparisons, and a few functions of `math` and `torch`.
"""

from __future__ import annotations

import ast
import keyword
import re

from fakexport.archive.manifest import DTYPE_BYTES
from fakexport.files.documents import DocumentError

from .shape_tree import parse_expression

_COMPARISONS = (ast.Lt, ast.LtE, ast.Gt, ast.GtE, ast.Eq, ast.NotEq)
_FUNCTIONS = frozenset(("max", "min", "abs", "round", "IsNonOverlappingAndDenseIndicator"))
_OF_MATH = frozenset({
    "acos", "asin", "atan", "ceil", "cos", "cosh", "exp", "floor", "inf", "log", "log2", "nan", "sin", "sinh",
    "sqrt", "tan", "tanh", "trunc",
})  # fmt: skip
_OF_TORCH = frozenset(("sym_float", "sym_int", "_sym_sqrt", "sym_max", "sym_min", "sym_not", "sym_ite"))
_FUNCTIONS_OF = {"math": _OF_MATH, "torch": _OF_TORCH}
_ASKED_BY_CALL = frozenset({
    "size", "stride", "storage_offset", "item", "is_contiguous", "_is_view", "is_inference", "is_conj",
    "is_neg",
})  # fmt: skip
_ARGUMENT = re.compile(r"[A-Za-z_][A-Za-z0-9_]*", re.ASCII)
_PLACE = re.compile(r"asked at [A-Za-z0-9_.:/ -]{1,300}", re.ASCII)
_INFERENCE_MODE = "torch.is_inference_mode_enabled"
_EXPORTING = "torch.compiler.is_exporting()"
_TYPES = frozenset(("bool", "int", "float", "str"))
_LAYOUTS = frozenset(
    ("strided", "jagged", *(f"sparse_{kind}" for kind in ("coo", "csr", "csc", "bsr", "bsc")))
)
_ZEROS = frozenset(("0.0", "-0.0"))
_MOST_POWERS, _LARGEST_POWER, _MOST_BITS = 4, 16, 256
# Keys are copied into a string literal of the code that torch generates.
_KEY = re.compile(r"[A-Za-z0-9_.:/ -]*", re.ASCII)


def checked_guard(text: str) -> str:
    """Return the text of a guard. Raise if torch could not have printed it, because running it is unsafe."""
    tree = parse_expression(text)
    match tree:
        case ast.BoolOp(ast.And(), [holds, ast.Constant(str(place))]):
            if not _PLACE.fullmatch(place):
                raise DocumentError(
                    f"a guard contains the text {place[:40]!r}, but only text such as `asked at FILE:LINE` "
                    "is allowed"
                )
            tree = holds
    match tree:
        case ast.BoolOp(ast.Or(), [holds, ast.Call() as other]) if ast.unparse(other) == _EXPORTING:
            tree = holds
    try:
        powers = _condition(tree)
    except RecursionError:
        raise DocumentError("a guard is nested too deeply") from None
    if powers > _MOST_POWERS:
        raise DocumentError("a guard contains a power that is too large")
    return text


def _condition(node: ast.expr) -> int:
    """Reject syntax that guards do not contain. Return the number of powers and shifts in the expression."""
    match node:
        case ast.Constant(int() as number) if number.bit_length() > _MOST_BITS:
            raise DocumentError(f"a guard contains a number of more than {_MOST_BITS} bits")
        case ast.Constant(bool() | int() | float() | None):
            return 0
        case ast.UnaryOp(operand=operand):
            return _condition(operand)
        case ast.BinOp(left, ast.Pow() | ast.LShift(), right):
            _power(right)
            return 1 + _base(left)
        case ast.BinOp(left, right=right) if not isinstance(node.op, ast.MatMult):
            return _condition(left) + _condition(right)
        case ast.BoolOp(values=values):
            return sum(map(_condition, values))
        case ast.Compare(left, [ast.Eq()], [right]) if _is_kind(left, right):
            return 0
        case ast.Compare() if all(isinstance(sign, _COMPARISONS) for sign in node.ops):
            return sum(map(_condition, (node.left, *node.comparators)))
        case ast.Call(called, [], []) if ast.unparse(called) == _INFERENCE_MODE:
            return 0
        case ast.Call(ast.Name(name), args, []) if name in _FUNCTIONS:
            return sum(map(_condition, args))
        case ast.Attribute(ast.Name(module), name) if name in _FUNCTIONS_OF.get(module, ()):
            return 0
        case ast.Call(ast.Attribute(ast.Name(module)) as called, args, []) if module in _FUNCTIONS_OF:
            return sum(map(_condition, (called, *args)))
    _check_input_read(node)
    return 0


def _is_kind(left: ast.expr, right: ast.expr) -> bool:
    """Return whether a comparison is about a dtype, layout, device or type, or counts distinct inputs."""
    match left, right:
        case ast.Attribute(owner, "dtype"), ast.Attribute(ast.Name("torch"), name):
            is_known = name in DTYPE_BYTES
        case ast.Attribute(owner, "layout"), ast.Attribute(ast.Name("torch"), name):
            is_known = name in _LAYOUTS
        case (ast.Attribute(ast.Attribute(owner, "device"), "type"), ast.Constant(str(name))):
            is_known = name.isidentifier()
        case ast.Call(ast.Name("type"), [owner], []), ast.Name(name):
            is_known = name in _TYPES
        case ast.Call(ast.Name("str"), [owner], []), ast.Constant(str(name)):
            is_known = name in _ZEROS
        case ast.Call(ast.Name("len"), [ast.Set(parts)], []), ast.Constant(int()):
            return all(map(_is_identity, parts))
        case _:
            return False
    _check_input_read(owner)
    return is_known


def _is_identity(node: ast.expr) -> bool:
    match node:
        case ast.Call(ast.Name("id"), [owner], []):
            _check_input_read(owner)
            return True
    return False


def _base(node: ast.expr) -> int:
    """Reject nested powers such as `9**9**9`, whose result is too large."""
    powers = _condition(node)
    if powers > 1:
        raise DocumentError("a guard contains a power that is too large")
    return powers


def _power(exponent: ast.expr) -> None:
    """Reject large exponents, because `9**9**9` would never finish. A square root, `** 0.5`, is accepted."""
    if isinstance(exponent, ast.UnaryOp) and isinstance(exponent.op, ast.USub):
        exponent = exponent.operand
    match exponent:
        case ast.Constant(int() | float() as number) if number is not True and number <= _LARGEST_POWER:
            return
    raise DocumentError("a guard contains a power that is too large")


def _check_input_read(node: ast.expr) -> None:
    """Accept only reads of an input, such as `L['x'][0]['key'].size()[0]` or `L['x'].shape[0]`."""
    match node:
        case ast.Subscript(ast.Name("L"), ast.Constant(str(argument))):
            if not _ARGUMENT.fullmatch(argument) or keyword.iskeyword(argument):
                raise DocumentError(f"a guard reads {argument[:40]!r}, which is not an argument")
            return
        case ast.Subscript(owner, ast.Constant(str(key))):
            if not _KEY.fullmatch(key):
                raise DocumentError(f"a guard reads the invalid key {key[:40]!r}")
        case ast.Subscript(owner, index):
            if isinstance(index, ast.UnaryOp) and isinstance(index.op, ast.USub):
                index = index.operand
            if not isinstance(index, ast.Constant) or type(index.value) is not int:
                raise DocumentError("a guard contains a subscript that is neither a number nor a key")
        case ast.Call(ast.Attribute(owner, name), [], []) if name in _ASKED_BY_CALL:
            pass
        case ast.Attribute(owner, "shape" | "ndim" | "requires_grad" | "is_leaf"):
            pass
        case ast.Call(ast.Attribute(owner, "is_contiguous"), [], [ast.keyword("memory_format", form)]) if (
            ast.unparse(form) in ("torch.channels_last", "torch.channels_last_3d")
        ):
            pass
        case ast.Attribute(ast.Call(ast.Attribute(owner, "untyped_storage"), [], []), "_cdata") | ast.Call(
            ast.Attribute(ast.Call(ast.Attribute(owner, "untyped_storage"), [], []), "nbytes"), [], []
        ):
            pass
        case _:
            raise DocumentError(f"a guard contains {ast.unparse(node)[:40]!r}, which torch never writes")
    _check_input_read(owner)
