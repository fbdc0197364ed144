"""Names for a node: its operator, its module, and a common name for repeated modules."""

from __future__ import annotations

import re
from collections.abc import Iterable
from typing import Any

from torch.fx import Node

# Prefixes added by tracers. Strict export wraps the module, and names it like a variable of the traced frame.
_ROOT = re.compile(r"^(L\['self'\]|L__self__|self|_export_root)(\.|$)")
_INDEXED = re.compile(r"(?:\.?_modules)?\[['\"]?(\w+)['\"]?\]")
_CALL_NUMBER = re.compile(r"@\d+")
# The path that torch assigns to nodes inserted by its own passes.
NO_PATH = "_empty_nn_module_stack_from_metadata_hook"
_INDEX = re.compile(r"\d+")


def module_path(node: Node) -> str:
    """Return the path of the innermost module that called the node, such as `model.layers.3.mlp`.

    All calls of a module have the same path. The path is "" for the root module and for nodes that torch
    itself inserts (sizes, runtime asserts).
    """
    stack = node.meta.get("nn_module_stack")
    if not stack:
        return ""
    path, _ = next(reversed(stack.values()))
    return "" if path == NO_PATH else plain_path(path)


def plain_path(path: str) -> str:
    """Return the path in a module stack without the prefixes and call numbers that tracers add."""
    previous = None
    while previous != path:
        previous, path = path, _ROOT.sub("", path)
    return _CALL_NUMBER.sub("", _INDEXED.sub(r".\1", path)).lstrip(".")


def star(path: str) -> str:
    """Return the path with a star for every index: `layers.3.experts.7` becomes `layers.*.experts.*`."""
    return ".".join("*" if _INDEX.fullmatch(part) else part for part in path.split("."))


def star_common(paths: Iterable[str]) -> str:
    """Merge paths that differ only in indices. Indices that differ become stars; common ones are kept.

    Example:
        >>> star_common(["layers.3.experts.0", "layers.3.experts.1"])
        'layers.3.experts.*'
    """
    columns = zip(*(path.split(".") for path in paths), strict=True)
    return ".".join(column[0] if len(set(column)) == 1 else "*" for column in columns)


_FACTORY = re.compile(r"aten\.(new_\w+|\w+_like)\.\w+")


def operator_name(node: Node) -> str:
    """Return a node's operator, such as `aten.linear.default`, or `node.op` for nodes without an operator.

    The name is the same on every machine. It contains no memory addresses or node names.
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
    """Return whether an operator uses only the shape and dtype of its input tensor, as `zeros_like` does."""
    return _FACTORY.fullmatch(name) is not None
