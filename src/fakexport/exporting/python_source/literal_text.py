"""Write the literals and devices in a graph as Python text."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

import torch

from fakexport.error import FakexportError
from fakexport.exporting.program import device_of_literal

from .names import Names, identifier


class PythonSourceError(FakexportError, ValueError):
    """A Python file cannot express something that the program contains. The message is a single line."""


class Devices:
    """The devices of one generated class. Each device is a constructor parameter, numbered by first use.

    Args:
        known: The devices of the program. Strings that equal one of them are treated as devices.
        taken: Names of attributes that the module already has.
    """

    def __init__(self, known: frozenset[str], taken: Iterable[str] = ()) -> None:
        self.known = known
        self._names = Names(taken)
        self.used: dict[str, str] = {}
        self.in_methods: dict[str, None] = {}

    def parameter(self, device: str) -> str:
        """Return the name of the constructor's parameter for a device."""
        if device not in self.used:
            self.used[device] = self._names.new("device")
        return self.used[device]

    def name_all(self) -> None:
        """Create a constructor parameter for each device of the program, named after the device."""
        if len(self.known) == 1:
            self.parameter(*self.known)
        for device in sorted(self.known - self.used.keys()):
            self.used[device] = self._names.new(f"device_{identifier(device)}")

    def of_literal(self, value: Any) -> str | None:
        """Return the text for a literal that names a device of the program, or None for other literals."""
        name = device_of_literal(value)
        if name is None or (device := usual_device(name)) not in self.known:
            return None
        parameter = self.parameter(device)
        self.in_methods[parameter] = None
        text = f"self.{parameter}"
        if isinstance(value, torch.device):
            return text
        return f"str({text})" if ":" in value else f"{text}.type"


def usual_device(name: str) -> str:
    """Return a device name with an index, such as `cuda:0` for `cuda`."""
    return name if ":" in name or name in ("cpu", "meta") else f"{name}:0"


def literal_text(value: Any) -> str:
    """Return a one-line expression that evaluates to a literal of a graph.

    Raises:
        PythonSourceError: this type of literal is not supported.
    """
    if value is None or isinstance(value, (bool, int, float)):
        return repr(value)
    if isinstance(value, complex):
        return f"complex({value.real!r}, {value.imag!r})"
    if isinstance(value, (str, bytes)):
        return quoted(value)
    if isinstance(value, (torch.dtype, torch.layout, torch.memory_format)):
        return str(value)
    if isinstance(value, torch.device):
        return f"torch.device({quoted(str(value))})"
    raise PythonSourceError(f"a {type(value).__qualname__} in the graph cannot be written as Python source")


def quoted(value: str | bytes) -> str:
    """Return an ASCII string literal, in double quotes if it then needs no escapes."""
    text = ascii(value)
    is_simple = text.startswith("'") and '"' not in text and "\\" not in text
    return f'"{text[1:-1]}"' if is_simple else text
