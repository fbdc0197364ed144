"""What a block may use of Python's own library and of extensions in C, whose state no walk can see.

Of both, only what is listed here: it keeps nothing, or what it keeps is seen by other means. A function in C
that is not listed may count its calls, read a file or ask for the time.
"""

from __future__ import annotations

import re
import sys
import types
from functools import cache
from types import CodeType
from typing import Any

from fakexport.program import is_user_code

# These compute from what they are given, or keep it in objects that a walk meets.
_WHOLE = frozenset(
    {
        "abc",
        "bisect",
        "builtins",
        "cmath",
        "collections",
        "collections_abc",
        "contextlib",
        "copy",
        "dataclasses",
        "enum",
        "fractions",
        "functools",
        "heapq",
        "itertools",
        "json",
        "keyword",
        "logging",
        "math",
        "numbers",
        "operator",
        "re",
        "sre",
        "string",
        "struct",
        "textwrap",
        "types",
        "typing",
        "warnings",
    }
)
_IN_PART = {
    "inspect": frozenset({"signature", "Signature", "Parameter", "BoundArguments", "_empty", "empty"}),
    "os": frozenset({"environ", "_Environ", "getenv", "sep"}),
    "weakref": frozenset({"ref", "ReferenceType", "WeakKeyDictionary", "WeakMethod", "WeakValueDictionary"}),
    "sys": frozenset(
        {"byteorder", "float_info", "hexversion", "maxsize", "platform", "version", "version_info"}
    ),
}
# What torch computes with, and a hook of imports. None of them keeps what a model could have changed.
_FILE_OF_TORCH = re.compile(
    r"[/\\\\](?:site|dist)-packages[/\\\\](?:sympy|mpmath|numpy|networkx|typing_extensions|_distutils_hack)\b"
)
# What torch computes with. Of numpy, not what sets how it computes, nor generators that start anywhere.
_OF_TORCH = frozenset({"torch", "fakexport", "numpy", "sympy", "mpmath", "networkx", "typing_extensions"})
_NOT_OF_NUMPY = frozenset(
    {"errstate", "geterr", "seterr", "getbufsize", "setbufsize", "default_rng", "Generator", "RandomState"}
)
# Names that Python itself gives to each module.
_OF_MODULES = frozenset({"__class__", "__dict__", "__doc__", "__file__", "__name__"})


@cache
def is_trusted_file(path: str) -> bool:
    """Return whether a file belongs to Python, torch or fakexport: what they keep is seen by other means."""
    return not is_user_code(path) or _FILE_OF_TORCH.search(path) is not None


def why_module_is_unknown(module: types.ModuleType, used: frozenset[str]) -> str | None:
    """Return which of the used names of a module may lead to state that no walk can see; None if none does.

    Args:
        module: Any module.
        used: All names that the code uses.
    """
    name = module.__name__
    if name.partition(".")[0] in _OF_TORCH or name in _IN_PART:
        for one in sorted((used & vars(module).keys()) - _OF_MODULES):
            if (reason := why_name_is_unknown(name, one)) is not None:
                return reason
        return None
    return why_name_is_unknown(name, "")


@cache
def why_name_is_unknown(module: str | None, name: str) -> str | None:
    """Return why a name of a module may lead to state that no walk can see; None if it does not.

    Args:
        module: The module's full name; None for what belongs to none.
        name: The name; empty for the module itself.
    """
    top = (module or "").partition(".")[0]
    if not top or top == "__main__":
        return None
    if top in _OF_TORCH:
        return f"`{module}.{name}`" if top == "numpy" and name in _NOT_OF_NUMPY else None
    library = top.lstrip("_")
    if top in sys.stdlib_module_names or library in _WHOLE:
        is_known = library in _WHOLE or name in _IN_PART.get(library, ())
        return None if is_known else f"`{'.'.join(filter(None, (module, name)))}`"
    path = getattr(sys.modules.get(module or ""), "__file__", None)
    return None if path is None or path.endswith((".py", ".pyc")) else f"`{module}`, which is not in Python"


def why_import_is_unknown(code: CodeType) -> str | None:
    """Return what code imports while it runs that may lead to such state; None if nothing does."""
    if "IMPORT_NAME" not in _operations(code):
        return None
    for name in _operations(code)["IMPORT_NAME"]:
        module = sys.modules.get(name)
        if module is None or name.partition(".")[0] not in (*_OF_TORCH, *sys.stdlib_module_names):
            return f"an import of `{name}`"
        if (reason := why_module_is_unknown(module, frozenset(code.co_names))) is not None:
            return reason
    return None


@cache
def _operations(code: CodeType) -> dict[str, list[Any]]:
    import dis

    found: dict[str, list[Any]] = {}
    for step in dis.get_instructions(code):
        found.setdefault(step.opname, []).append(step.argval)
    return found
