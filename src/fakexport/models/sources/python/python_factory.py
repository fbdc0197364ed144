"""Sources written in Python: a factory in a file or in an installed package."""

from __future__ import annotations

import inspect
from collections.abc import Callable, Iterator
from functools import partial
from importlib.metadata import EntryPoint
from pathlib import Path
from types import ModuleType
from typing import Any

import torch
from torch import nn

from fakexport.emulation.devices import Topology, emulated_topology
from fakexport.models import FORMS
from fakexport.models.sources.python.python_file import (
    check_file,
    forget_modules,
    import_file,
    import_module,
    importable,
)
from fakexport.models.sources.source import ExampleInputs, Source
from fakexport.models.sources.source_error import SourceError, did_you_mean

_A_SOURCE_IS = f"; a source is {' | '.join(FORMS)}"


def python_source(spec: str, entry: EntryPoint | None = None) -> Source:
    """Return the source of a factory in a Python file or package.

    Modules in the file's folder (for a package, in the working directory) can be imported while the file is
    imported and while the factory runs.

    `prepare` imports the file again for each topology, because the file may query devices at import:
    `HAS_CUDA = torch.cuda.is_available()`.

    Args:
        spec: `path/to/file.py:FACTORY` or `package.module:FACTORY`; `FACTORY` may be dotted.
        entry: An entry point of `fakexport.sources`. The spec is its name, and a text for its function.
    Raises:
        SourceError: the file does not exist. `prepare` raises it if the package or attribute does not exist,
            the import raises an error, or the attribute is not callable or requires arguments.
    """
    place, _, attribute = spec.rpartition(":")
    if not place or not attribute:
        raise SourceError(f"{spec!r} has no factory: write {spec.strip(':')}:FACTORY")
    imported = (
        _Imported(place, attribute)
        if entry is None
        else _Imported(entry.module, entry.attr, (spec.partition(":")[2],))
    )

    def construct() -> Any:
        imported.prepare()
        with importable(imported.folder):
            return checked(imported.factory(), spec)

    return Source(
        spec=spec, kind="python", factory=construct, example_inputs=no_inputs(spec), prepare=imported.prepare
    )


# Folder -> the devices for which its modules were last imported.
_imported_in: dict[Path, Topology | None] = {}


class _Imported:
    """A factory that was imported under the emulated devices."""

    factory: Callable[[], Any]

    def __init__(self, place: str, attribute: str, arguments: tuple[str, ...] = ()) -> None:
        self.place, self._attribute, self._arguments = place, attribute, arguments
        self._is_file = place.endswith(".py") or "/" in place
        self._path = Path(place).absolute()  # The imported code may change the working directory.
        self.folder = self._path.parent if self._is_file else Path.cwd()
        self._imported_for: tuple[Topology | None, ...] = ()
        if self._is_file:
            check_file(Path(place))

    def _module(self) -> ModuleType:
        if self._is_file:
            return import_file(self._path, self.place)
        return import_module(self.place, _A_SOURCE_IS)

    def prepare(self) -> None:
        """Import the factory, unless it was already imported for these devices."""
        devices = emulated_topology()
        if self._imported_for == (devices,):
            return
        if _imported_in.get(self.folder, devices) != devices:
            forget_modules(self.folder)
        try:
            with importable(self.folder):
                module = self._module()
        except SourceError as error:
            if not self._imported_for:
                raise
            raise SourceError(
                f"{error}; an earlier import, for a different target, succeeded: check one target at a time"
            ) from error
        self.factory = _attribute(module, self._attribute, self.place, self._arguments)
        self._imported_for = (devices,)
        _imported_in[self.folder] = devices


def _attribute(
    module: ModuleType, path: str, place: str, arguments: tuple[str, ...] = ()
) -> Callable[[], Any]:
    found: Any = module
    for name in path.split("."):
        if not hasattr(found, name):
            raise SourceError(f"{place} has no {name!r}{did_you_mean(name, _factories(module))}")
        found = getattr(found, name)
    if not callable(found):
        raise SourceError(f"{place}:{path} is not a factory: {type(found).__name__} is not callable")
    factory: Callable[[], Any] = partial(found, *arguments) if arguments else found
    check_arguments(factory, f"{place}:{path}")
    return factory


def check_arguments(factory: Callable[..., Any], name: str) -> None:
    """Raise a `SourceError` that lists the factory's required arguments, if it has any."""
    if needed := _required(factory):
        raise SourceError(
            f"{name} requires arguments ({', '.join(needed)}), but a factory is called without "
            "any: write a function that passes them"
        )


def _required(factory: Callable[..., Any]) -> list[str]:
    """Return the required parameters of a callable."""
    try:
        parameters = inspect.signature(factory).parameters.values()
    except (ValueError, TypeError):  # Implemented in C, so the signature is unknown until the call.
        return []
    starred = (inspect.Parameter.VAR_POSITIONAL, inspect.Parameter.VAR_KEYWORD)
    return [p.name for p in parameters if p.default is p.empty and p.kind not in starred]


def _factories(module: ModuleType) -> Iterator[str]:
    """Yield the callables that the module itself defines."""
    for name, value in vars(module).items():
        if (
            callable(value)
            and not name.startswith("_")
            and getattr(value, "__module__", None) == module.__name__
        ):
            yield name


def checked(made: Any, spec: str) -> Any:
    """Return the result of a factory if it is a module, `(module, args)` or `(module, args, kwargs)`.

    Raises:
        SourceError: the result has any other form.
    """
    match made:
        case nn.Module() | (nn.Module(), tuple() | list()) | (nn.Module(), tuple() | list(), dict()):
            return made
    shape = type(made).__name__
    if isinstance(made, tuple):
        shape = f"({', '.join(type(part).__name__ for part in made)})"
    raise SourceError(f"{spec} returned {shape}, not a module, (module, args) or (module, args, kwargs)")


def no_inputs(spec: str) -> Callable[[nn.Module, str, torch.dtype | None], ExampleInputs]:
    """Return an `example_inputs` function for a source without inputs.

    Unless `forward` has no parameters, the function raises an error that says how to pass inputs.
    """

    def example_inputs(module: nn.Module, device: str, dtype: torch.dtype | None) -> ExampleInputs:
        if not inspect.signature(module.forward).parameters:
            return ExampleInputs()
        raise SourceError(
            f"{spec} returned no inputs: return (module, args), or pass --input NAME=DTYPE[DIMS]"
        )

    return example_inputs
