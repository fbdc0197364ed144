"""Search `sys.modules` without visiting every module on each call.

A process that has imported transformers has thousands of modules, and one check searches them several times.
"""

from __future__ import annotations

import sys
import sysconfig
from collections.abc import Callable
from operator import is_
from pathlib import Path
from types import ModuleType
from typing import Any

_paths = sysconfig.get_paths()
_LIBRARIES = (
    *{f"{_paths[kind]}/" for kind in ("stdlib", "platstdlib", "purelib", "platlib")},
    f"{Path(__file__).parents[1]}/",
)


class LoadedModules:
    """Find the modules in `sys.modules` that satisfy a predicate.

    Modules of the standard library and of installed libraries are visited once, because their attributes do
    not change after import. Modules that the user may change at run time are visited on every call:
    `__main__`, modules in the user's own folders, and modules without a file.
    """

    def __init__(self, is_wanted: Callable[[str, Any], bool]) -> None:
        self._is_wanted = is_wanted
        # Names and objects of the visited modules, in the order of `sys.modules`, and the modules to visit
        # again.
        self._known: tuple[list[str], list[Any], dict[str, Any]] = ([], [], {})

    def find(self) -> dict[str, ModuleType]:
        """Return the matching modules by name, in the order in which they were imported."""
        loaded = sys.modules.copy()
        names, modules = list(loaded), list(loaded.values())
        known_names, known_modules, again = self._known
        count = len(known_names)
        # New modules are at the end. If a known module was removed or reimported, start over.
        if names[:count] != known_names or not all(map(is_, modules, known_modules)):
            count, again = 0, {}
        if count < len(names):
            new = {
                name: module
                for name, module in zip(names[count:], modules[count:], strict=True)
                if self._is_wanted(name, module) or not _is_of_a_library(name, module)
            }
            again = {**again, **new}
            if not any(_is_being_imported(module) for module in modules[count:]):
                self._known = names, modules, again
        return {name: module for name, module in again.items() if self._is_wanted(name, module)}


def _is_being_imported(module: Any) -> bool:
    return bool(getattr(getattr(module, "__spec__", None), "_initializing", False))


def _is_of_a_library(name: str, module: Any) -> bool:
    # A library can be run as the main program: IPython sessions keep the user's names in `__main__`.
    file = None if name in ("__main__", "__mp_main__") else getattr(module, "__file__", None)
    return isinstance(file, str) and file.startswith(_LIBRARIES)
