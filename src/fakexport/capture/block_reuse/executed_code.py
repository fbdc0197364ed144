"""Which Python code ran during a call, and what of the process it can see by name."""

from __future__ import annotations

import dis
import operator
import re
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from types import CodeType, ModuleType
from typing import Any

from .known_libraries import (
    is_trusted_file,
    why_import_is_unknown,
    why_module_is_unknown,
    why_name_is_unknown,
)
from .noted_code import noted

# What code may ask for that is neither an argument nor reachable from one, nor found by name.
_SUSPECT_NAMES = frozenset(
    {
        "__dict__",
        "__closure__",
        "_getframe",
        "currentframe",
        "_base",
        "eval",
        "grad_fn",
        "hash",
        "exec",
        "globals",
        "id",
        "import_module",
        "__import__",
        "input",
        "locals",
        "open",
        "print",
        "setprofile",
        "settrace",
        "vars",
        "__subclasses__",
        "get_objects",
        "get_referrers",
        "register_forward_hook",
        "register_forward_pre_hook",
    }
)
# A block that changes a setting of torch may count its own runs in it.
_SETS = re.compile(r"_?set_(?!grad_enabled$)|.*_set_.*")


def _modules_by_file() -> dict[str, dict[str, Any] | None]:
    """Return the names of each module by its file; None for a file that is several modules."""
    found: dict[str, dict[str, Any] | None] = {}
    for module in list(sys.modules.values()):
        path = vars(module).get("__file__") if isinstance(module, ModuleType) else None
        if isinstance(path, str):
            found[path] = vars(module) if found.get(path, vars(module)) is vars(module) else None
    return found


@dataclass(frozen=True)
class _UsedNames:
    """Which names of a class the code may look at, while the class holds the same and no new code ran.

    Args:
        of: How much code had run.
        names, values: What the class held.
        used: The names.
    """

    of: int
    names: tuple[str, ...]
    values: tuple[Any, ...]
    used: list[str]

    def hold_for(self, of: int, names: tuple[str, ...], values: tuple[Any, ...]) -> bool:
        return of == self.of and names == self.names and all(map(operator.is_, values, self.values))


class ExecutedCode:
    """The code of the model and its libraries that ran, with its globals."""

    def __init__(self) -> None:
        self.found: dict[CodeType, dict[str, Any] | None] = {}
        self._usual: set[CodeType] = set()
        self._apart: dict[CodeType, frozenset[str]] = {}
        self._used: dict[type, _UsedNames] = {}
        self._names: tuple[int, frozenset[str], frozenset[str]] = (0, frozenset(), frozenset())
        self._named: tuple[int, list[tuple[dict[str, Any], str]], list[CodeType]] = (0, [], [])

    @contextmanager
    def noted(self) -> Iterator[None]:
        """Enter a context in which the code that runs is noted."""
        ran: set[CodeType] = set()
        try:
            with noted() as ran:
                yield
        finally:
            new = {code for code in ran - self.found.keys() if not is_trusted_file(code.co_filename)}
            modules = _modules_by_file() if new else {}
            self.found |= {code: modules.get(code.co_filename) for code in new}

    @property
    def names(self) -> frozenset[str]:
        """All names that the code uses, and its texts: `getattr` takes one."""
        return self._all_names()[1]

    @property
    def names_besides_torchs(self) -> frozenset[str]:
        """The same without what is only an attribute of torch by name: `stack`, where all say `torch.stack`.

        So `inspect.signature` next to it is not taken for `inspect.stack`.
        """
        return self._all_names()[2]

    def _all_names(self) -> tuple[int, frozenset[str], frozenset[str]]:
        if self._names[0] != len(self.found):  # Code is only added.
            for code in self.found.keys() - self._apart.keys():
                texts = (text for text in code.co_consts if isinstance(text, str))
                self._apart[code] = frozenset((*texts, *_names_besides_torchs(code, self.found[code])))
            used = (name for code in self.found for name in (*code.co_names, *code.co_consts))
            names = frozenset(name for name in used if isinstance(name, str))
            self._names = (len(self.found), names, frozenset().union(*self._apart.values()))
        return self._names

    @property
    def globals(self) -> list[tuple[dict[str, Any], str]]:
        """The names of modules that the code may look up, each once, with the names of the module."""
        return self._all_named()[1]

    @property
    def closures(self) -> list[CodeType]:
        """The code with free variables that no other code here makes."""
        return self._all_named()[2]

    def _all_named(self) -> tuple[int, list[tuple[dict[str, Any], str]], list[CodeType]]:
        if self._named[0] != len(self.found):
            named = {
                (id(names), name): (names, name)
                for code, names in self.found.items()
                if names is not None
                for name in code.co_names
            }
            inner = {c for code in self.found for c in code.co_consts if isinstance(c, CodeType)}
            free = [code for code in self.found if code.co_freevars and code not in inner]
            self._named = (len(self.found), list(named.values()), free)
        return self._named

    def used_names(self, owner: type, uses: Callable[[str, Any], bool]) -> list[str]:
        """Return the names of a class that the code may look at, in order.

        Args:
            owner: The class.
            uses: Tells it of a name and what the class holds under it. Asked again only where the class holds
                something else, or after new code.
        """
        names, values = tuple(vars(owner)), tuple(vars(owner).values())
        known = self._used.get(owner)
        if known is None or not known.hold_for(len(self.found), names, values):
            used = sorted(name for name, value in zip(names, values, strict=True) if uses(name, value))
            known = self._used[owner] = _UsedNames(len(self.found), names, values, used)
        return known.used

    def suspicion(self) -> str | None:
        """Return what the code asks for that nothing here could tell; None for usual code."""
        for code in self.found.keys() - self._usual:
            if (reason := _why_suspect(code, self.found[code])) is not None:
                return f"{code.co_name} {reason}"
            self._usual.add(code)
        return None


def _names_besides_torchs(code: CodeType, names: dict[str, Any] | None) -> Iterator[str]:
    of_torch = False
    for step in dis.get_instructions(code):
        is_attribute = step.opname in ("LOAD_ATTR", "LOAD_METHOD")
        if step.argval in code.co_names and not (of_torch and is_attribute):
            yield step.argval
        value = (names or {}).get(step.argval) if step.opname == "LOAD_GLOBAL" else None
        of_torch = isinstance(value, ModuleType) and value.__name__.partition(".")[0] == "torch"


def _why_suspect(code: CodeType, names: dict[str, Any] | None) -> str | None:
    if names is None:
        return "is in a file that is not a module"
    if (imported := why_import_is_unknown(code)) is not None:
        return f"uses {imported}"
    for name in code.co_names:
        if name in _SUSPECT_NAMES or _SETS.match(name):
            return f"uses `{name}`"
        value = names.get(name)
        if isinstance(value, ModuleType):
            reason = why_module_is_unknown(value, frozenset(_names_besides_torchs(code, names)))
        else:
            owner = getattr(value, "__module__", None)
            reason = why_name_is_unknown(owner, name) if isinstance(owner, str) else None
        if reason is not None:
            return f"uses {reason}"
    return None
