"""Check whether all kernels of an operator belong to torch itself. Seen on torch 2.13.

A kernel registered by other code may do anything, such as count its calls or return a different result
each time.

Source: `torch/library.py:Library.impl`, `torch/_ops.py:OperatorBase.py_impl`,
`aten/src/ATen/core/dispatch/OperatorEntry.cpp:dumpState`.
"""

from __future__ import annotations

import os
import re
from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch
from torch._ops import OperatorBase, OpOverload
from torch.library import Library

from fakexport._torch.patching import Patches, in_force

_HOME = f"{Path(torch.__file__).parent}{os.sep}"
_PLACE = re.compile(r"registered at (.+?):\d+ ::")
_SCHEMA = "aten/src/ATen/RegisterSchema.cpp"
_FILE = re.compile(r"^debug: registered at (.*?)(?:build/)?" + re.escape(_SCHEMA), re.MULTILINE)
_CHANGES = ((Library, "impl"), (Library, "fallback"), (Library, "_destroy"), (OperatorBase, "py_impl"))


class KernelOrigins:
    """Report whether all kernels of an operator are torch's own."""

    def __init__(self) -> None:
        self._foreign: bool | None = None

    def are_of_torch(self, func: OpOverload) -> bool:
        """Return whether all kernels of an operator, and of ATen operators it may call, are torch's own."""
        if self._foreign is None:
            self._foreign = any(map(_is_foreign, _overridden()))
        return (
            not self._foreign and not _is_foreign(func.name()) and all(map(_is_torchs, _python_kernels(func)))
        )

    def watched(self, forget: Callable[[], None]) -> Patches:
        """Return a context in which `forget` is called whenever a kernel is registered or removed."""

        def noting(stock: Callable[..., Any]) -> Callable[..., Any]:
            def change(*args: Any, **kwargs: Any) -> Any:
                self._foreign = None
                forget()
                return stock(*args, **kwargs)

            return change

        return Patches({(owner, name): noting(in_force(owner, name)) for owner, name in _CHANGES})


def _overridden() -> set[str]:
    """Return the names of ATen operators for which Python registered more than a meta kernel."""
    found = (key.split("/") for key in getattr(torch.library, "_impls", ()))
    return {f"{parts[0]}::{parts[1]}" for parts in found if parts[0] == "aten" and parts[-1] != "Meta"}


def _is_foreign(name: str) -> bool:
    dump = _dump(name)
    built = _FILE.search(dump)
    return built is None or any(not place.startswith((_HOME, built[1])) for place in _PLACE.findall(dump))


def _dump(name: str) -> str:
    try:
        dumped: str = torch._C._dispatch_dump(name)
    except (AttributeError, RuntimeError):  # An unknown operator, or a different torch.
        return ""
    return dumped


def _python_kernels(func: OpOverload) -> list[Any]:
    return [*func.py_kernels.values(), *func._dispatch_cache.values()]


def _is_torchs(kernel: Any) -> bool:
    module = getattr(kernel, "__module__", None) or ""
    return not callable(kernel) or module.partition(".")[0] in ("torch", "fakexport")
