"""torch's own file format for programs: versions, enum codes, and reading files with torch.

Seen on torch 2.11 to 2.13. Source: `torch/_export/serde/schema.py` and `serialize.py`;
`torch/export/__init__.py:load`, which only returns the program named `model`. If `load_pt2` fails, `load`
logs the error and raises a different error that refers to the log.
"""

from __future__ import annotations

import math
import operator
import re
from collections.abc import Callable
from typing import Any

import torch
import torch._functorch.predispatch
from torch._export.serde.schema import SCHEMA_VERSION as SCHEMA_VERSION
from torch._export.serde.serialize import (
    _SYM_OPS,
    _TORCH_TO_SERIALIZE_LAYOUT,
    _TORCH_TO_SERIALIZE_MEMORY_FORMAT,
)
from torch.amp import autocast_mode
from torch.export import ExportedProgram
from torch.export.pt2_archive._package import load_pt2

_UNKNOWN_CLASS = re.compile(r"Couldn't resolve type .*__torch__\.torch\.classes\.(\w+)\.(\w+)")

LAYOUT_CODES: dict[torch.layout, int] = {key: int(code) for key, code in _TORCH_TO_SERIALIZE_LAYOUT.items()}
MEMORY_FORMAT_CODES: dict[torch.memory_format, int] = {
    key: int(code) for key, code in _TORCH_TO_SERIALIZE_MEMORY_FORMAT.items()
}

SYMBOLIC_OPERATORS: dict[str, Callable[..., Any]] = {
    f"{function.__module__}.{function.__name__}": function
    for function in sorted(_SYM_OPS, key=lambda function: (function.__module__, function.__name__))
}
"""Python functions on symbolic numbers that a program may contain, by serialized name."""


def aten_version() -> int:
    """Return the version of the ATen operator set that this torch writes into a program."""
    version: int = torch._C._get_max_operator_version()
    return version


def _python_functions() -> dict[str, Callable[..., Any]]:
    """Return the functions that torch's verifier accepts besides operators and `SYMBOLIC_OPERATORS`."""
    found: list[Callable[..., Any]] = [operator.getitem, operator.abs, operator.index, torch.sym_sum]
    found += [getattr(math, name) for name in ("ceil", "floor", "sqrt", "log2", "exp") if hasattr(math, name)]
    found += [torch._C._set_grad_enabled, autocast_mode._enter_autocast, autocast_mode._exit_autocast]
    predispatch = torch._functorch.predispatch
    names = [
        "_add_batch_dim",
        "_remove_batch_dim",
        "_vmap_increment_nesting",
        "_vmap_decrement_nesting",
        "lazy_load_decompositions",
        "_enter_dual_level",
        "_exit_dual_level",
        "_jvp_increment_nesting",
        "_jvp_decrement_nesting",
        "_make_dual",
        "_unpack_dual",
        "_unwrap_for_grad",
    ]
    found += [getattr(predispatch, name) for name in names if hasattr(predispatch, name)]
    return {f"{function.__module__}.{function.__name__}": function for function in found}


PYTHON_FUNCTIONS = _python_functions()
"""Other Python functions that a program may contain, by serialized name."""


def programs_of(path: str) -> dict[str, ExportedProgram]:
    """Return all programs of a file by name.

    This also loads other content of the file, such as compiled code. The file must be trusted, because
    loading it may run code from the file.
    """
    programs: dict[str, ExportedProgram] = load_pt2(path).exported_programs
    return programs


def reading_fault(path: str, raised: Exception) -> Exception:
    """Read a file again, and return the cause of the error that `torch.export.load` raised.

    The file must be trusted, because loading it may run code from the file.
    """
    if not str(raised).startswith("We ran into an error when deserializing"):
        return raised
    try:
        load_pt2(path)
    except Exception as error:
        return error
    return raised


def unregistered_class(fault: Exception) -> str | None:
    """Return the C++ class that an error reports as unknown, such as `acme::Table`, or None.

    torch does not know a class if the library that registers it is not loaded.
    """
    found = _UNKNOWN_CLASS.search(str(fault))
    return f"{found[1]}::{found[2]}" if found else None
