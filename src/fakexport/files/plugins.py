"""Entry points with which installed packages add sources, runtimes, device profiles and rules."""

from __future__ import annotations

from collections.abc import Mapping
from importlib import resources
from importlib.resources.abc import Traversable
from typing import TYPE_CHECKING, Any, Literal

from fakexport.error import FakexportError, first_line

if TYPE_CHECKING:
    from importlib.metadata import EntryPoint

Group = Literal["sources", "runtimes", "profiles", "rules"]


class PluginError(FakexportError, RuntimeError):
    """A plugin raises an error, or is not what its group requires. The message names the package."""


def plugins(group: Group) -> Mapping[str, EntryPoint]:
    """Return the entry points of the group `fakexport.GROUP` of all installed packages, sorted by name."""
    from importlib.metadata import entry_points  # Imported here: it takes 20 ms, and few commands need it.

    found = entry_points(group=f"fakexport.{group}")
    return {entry.name: entry for entry in sorted(found, key=lambda entry: entry.name)}


def load_plugin(entry: EntryPoint) -> Any:
    """Import the object of an entry point, or raise a `PluginError`."""
    try:
        return entry.load()
    except Exception as error:
        raise plugin_fault(
            entry, f"cannot be imported: {type(error).__name__}: {first_line(error)}"
        ) from error


def plugin_file(entry: EntryPoint, name: str) -> Traversable:
    """Return a data file, or `.` for the folder, of the package of an entry point."""
    try:
        return resources.files(entry.module) / name
    except Exception as error:
        raise plugin_fault(
            entry, f"cannot be imported: {type(error).__name__}: {first_line(error)}"
        ) from error


def plugin_fault(entry: EntryPoint, what: str) -> PluginError:
    """Return the error for a plugin that is at fault, with the package to update or remove."""
    package = entry.dist.name if entry.dist is not None else entry.module
    return PluginError(f"the plugin {entry.name!r} ({entry.group}) of the package {package} {what}")
