"""Python text of one operation."""

from __future__ import annotations

import builtins
import math
import operator
import re
import sys
from collections.abc import Callable
from types import ModuleType
from typing import Any

import torch

from fakexport._torch.operator_registry import HigherOrderOperator, OpOverload
from fakexport.program import target_name

from .error import PythonSourceError
from .literal_text import Devices, literal_text, quoted
from .names import is_plain_attribute
from .values import Body, Context, Operation, Value

_INFIX = {
    operator.add: "+",
    operator.sub: "-",
    operator.mul: "*",
    operator.truediv: "/",
    operator.floordiv: "//",
    operator.mod: "%",
    operator.pow: "**",
    operator.lshift: "<<",
    operator.rshift: ">>",
    operator.and_: "&",
    operator.or_: "|",
    operator.xor: "^",
    operator.eq: "==",
    operator.ne: "!=",
    operator.lt: "<",
    operator.le: "<=",
    operator.gt: ">",
    operator.ge: ">=",
}
_PREFIX = {operator.neg: "-", operator.not_: "not ", operator.pos: "+", operator.invert: "~"}
_MODULES: tuple[ModuleType, ...] = (operator, math, builtins, torch)
_WORD = re.compile(r"[A-Za-z_][A-Za-z0-9_]*", re.ASCII)


class OperationText:
    """Writes operations of one class.

    Args:
        name: Text that gets a value.
        body: Name of the method of a subgraph.
        devices: The devices of the class.
    """

    def __init__(self, name: Callable[[Value], str], body: Callable[[Body], str], devices: Devices) -> None:
        self._name = name
        self._body = body
        self._devices = devices

    def expression(self, operation: Operation) -> tuple[str, tuple[str, ...], str]:
        """Return what is before the arguments, the arguments, and what is after them."""
        target, args, kwargs = operation.target, operation.args, operation.kwargs
        if target in _INFIX and len(args) == 2:
            left, right = (f"({text})" if text.startswith("-") else text for text in map(self.text, args))
            return f"{left} {_INFIX[target]} {right}", (), ""
        if target in _PREFIX and len(args) == 1:
            return f"{_PREFIX[target]}{self.text(args[0])}", (), ""
        if target is operator.getitem:
            return f"{self.text(args[0])}[{self.text(args[1])}]", (), ""
        special = _SPECIAL.get(target_name(target))
        if special is not None and not kwargs and (text := special(self, *args)) is not None:
            return text, (), ""
        words = [self.text(arg) for arg in args]
        named = {key: self.text(arg) for key, arg in kwargs.items()}
        plain = [f"{key}={text}" for key, text in named.items() if is_plain_attribute(key)]
        odd = [f"{quoted(key)}: {text}" for key, text in named.items() if not is_plain_attribute(key)]
        starred = [f"**{{{', '.join(odd)}}}"] if odd else []
        return f"{self.callee(target)}(", (*words, *plain, *starred), ")"

    def callee(self, target: Any) -> str:
        """Return text that gets an operator or function."""
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

    def context(self, context: Context) -> str:
        """Return the `with` line of a mode."""
        if context.kind == "set_grad_enabled":
            return f"with torch.set_grad_enabled({self.text(context.arguments[0])}):"
        device, dtype, is_enabled, is_caching = context.arguments
        given = {"dtype": dtype, "enabled": is_enabled, "cache_enabled": is_caching}
        options = [f"{key}={self.text(value)}" for key, value in given.items() if value is not None]
        return f"with torch.autocast({', '.join((self.text(device), *options))}):"

    def text(self, value: Any) -> str:
        """Return text of an argument."""
        if isinstance(value, Value):
            return self._name(value)
        if isinstance(value, Body):
            return self._body(value)
        if isinstance(value, list):
            return f"[{', '.join(map(self.text, value))}]"
        if isinstance(value, tuple):
            return f"({', '.join(map(self.text, value))}{',' if len(value) == 1 else ''})"
        if isinstance(value, dict):
            return (
                f"{{{', '.join(f'{literal_text(key)}: {self.text(item)}' for key, item in value.items())}}}"
            )
        if isinstance(value, slice):
            return f"slice({', '.join(map(self.text, (value.start, value.stop, value.step)))})"
        if isinstance(value, (OpOverload, HigherOrderOperator)):
            return self.callee(value)
        return self._devices.of_literal(value) or literal_text(value)

    def size(self, tensor: Any, dim: Any) -> str | None:
        """Return one size of a tensor."""
        return f"{self.text(tensor)}.shape[{self.text(dim)}]"

    def item(self, tensor: Any) -> str | None:
        """Return the number in a tensor."""
        return f"{self.text(tensor)}.item()"

    def scalar_assertion(self, condition: Any, message: Any) -> str | None:
        """Return what torch found out about sizes, or what the model promised."""
        return f"assert {self.text(condition)}, {self.text(message)}"


_SPECIAL: dict[str, Callable[..., str | None]] = {
    "aten.sym_size.int": OperationText.size,
    "aten.item.default": OperationText.item,
    "aten._assert_scalar.default": OperationText.scalar_assertion,
}


def torch_module(target: Any) -> str | None:
    """Return the module of torch that has a function under its own name, such as those of batched scans."""
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
