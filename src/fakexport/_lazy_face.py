"""Packages whose public names are imported on first use, because some of them need torch."""

import importlib
from collections.abc import Callable, Mapping
from typing import Any


def lazy_names(package: str, homes: Mapping[str, str]) -> Callable[[str], object]:
    """Return the `__getattr__` of a package that imports its names on first use.

    Args:
        package: The `__name__` of the package.
        homes: Maps each module below the package to the names to import from it, separated by spaces.
    """
    home_of = {name: home for home, names in homes.items() for name in names.split()}

    def of_package(name: str) -> object:
        if name not in home_of:
            raise AttributeError(f"module {package!r} has no attribute {name!r}")
        # A lock here could deadlock, because Python's import locks are taken both before and after it.
        return of_module(f"{package}.{home_of[name]}", name)

    return of_package


def of_module(module: str, name: str) -> Any:
    """Import a module on first use, and return one of its names.

    Raises:
        MissingInTorch: fakexport needs a private name that this torch lacks.
    """
    try:
        return getattr(importlib.import_module(module), name)
    except (AttributeError, ImportError) as error:  # `from` turns an AttributeError into an ImportError.
        from fakexport.error import raise_missing

        raise_missing(error)
        raise
