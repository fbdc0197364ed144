"""Python text of the literals in a graph, and of the devices."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

import torch

from fakexport.error import FakexportError
from fakexport.program import device_of_literal

from .names import Names, identifier


class PythonSourceError(FakexportError, ValueError):
    """A program holds something that a Python file cannot; the text is one line."""


class Devices:
    """The devices of one class: each is a parameter of its constructor, named by when it is first used.

    Args:
        known: The devices of the program, so that a string that is one of them is known for a device.
        taken: Attributes that the module has anyway.
    """

    def __init__(self, known: frozenset[str], taken: Iterable[str] = ()) -> None:
        self.known = known
        self._names = Names(taken)
        self.used: dict[str, str] = {}
        self.in_methods: dict[str, None] = {}

    def parameter(self, device: str) -> str:
        """Return name of the constructor's parameter for a device."""
        if device not in self.used:
            self.used[device] = self._names.new("device")
        return self.used[device]

    def name_all(self) -> None:
        """Return every device of the program its parameter, as the program itself has them."""
        if len(self.known) == 1:
            self.parameter(*self.known)
        for device in sorted(self.known - self.used.keys()):
            self.used[device] = self._names.new(f"device_{identifier(device)}")

    def of_literal(self, value: Any) -> str | None:
        """Return text of a literal that names a device, or None where it names none of the program's."""
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
    """Return `cuda` as `cuda:0`: a program without an index means the only one there is."""
    return name if ":" in name or name in ("cpu", "meta") else f"{name}:0"


def literal_text(value: Any) -> str:
    """Return text that evaluates to a literal of a graph, on one line.

    Raises:
        PythonSourceError: it is of a kind that has no text.
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
    """Return a string literal of ASCII characters, in double quotes where it needs no escapes for that."""
    text = ascii(value)
    is_simple = text.startswith("'") and '"' not in text and "\\" not in text
    return f'"{text[1:-1]}"' if is_simple else text
