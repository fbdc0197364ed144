"""The loaded modules that have something, found without a look at all of them each time.

A process that has imported transformers has thousands, and a check asks several times.
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
    """Finds the modules in `sys.modules` that are wanted.

    A module of an installed library or of Python is looked at once, as its names stay once it is imported.
    What a person may change while the process runs is looked at each time: `__main__`, the modules of their
    folders, and whatever has no file.

    Args:
        is_wanted: Whether a module is one, by its name and itself.
    """

    def __init__(self, is_wanted: Callable[[str, Any], bool]) -> None:
        self._is_wanted = is_wanted
        # What was looked at, in the order of `sys.modules`, and what of it is looked at again.
        self._known: tuple[list[str], list[Any], dict[str, Any]] = ([], [], {})

    def find(self) -> dict[str, ModuleType]:
        """Return them by name, in the order in which they were imported."""
        loaded = sys.modules.copy()
        names, modules = list(loaded), list(loaded.values())
        known_names, known_modules, again = self._known
        count = len(known_names)
        # New modules are at the end. One that left, or came again, makes all of them new.
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
    # What was started may be a library's: the names of a session of IPython are in it.
    file = None if name in ("__main__", "__mp_main__") else getattr(module, "__file__", None)
    return isinstance(file, str) and file.startswith(_LIBRARIES)
