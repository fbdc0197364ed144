"""The name under which a node's operator is known."""

from __future__ import annotations

import re
from typing import Any

from torch.fx import Node

_FACTORY = re.compile(r"aten\.(new_\w+|\w+_like)\.\w+")


def operator_name(node: Node) -> str:
    """Return `aten.linear.default`, `higher_order.cond`, `operator.getitem`; else the op, `placeholder`.

    The same on every machine: memory addresses and node names never appear in it.
    """
    return target_name(node.target) if node.op == "call_function" else node.op


def target_name(target: Any) -> str:
    """Return the name of an operator overload, a higher-order operator, or any other callable."""
    if hasattr(target, "overloadpacket"):
        return str(target)
    namespace, name = getattr(target, "namespace", None), getattr(target, "name", None)
    if namespace is not None and callable(name):
        return f"{namespace}.{name()}"
    module = (getattr(target, "__module__", None) or "").removeprefix("_")
    own_name = getattr(target, "__qualname__", None) or type(target).__qualname__
    return f"{module}.{own_name}" if module and module != "builtins" else own_name


def is_factory(name: str) -> bool:
    """Return whether an operator makes a tensor from another's shape and dtype: no data moves."""
    return _FACTORY.fullmatch(name) is not None
