"""The versions and the number codes of torch's own JSON schema of a program. Seen on torch 2.11 to 2.13.

Source: `torch/_export/serde/schema.py` and `serialize.py`.
"""

from __future__ import annotations

import math
import operator
from collections.abc import Callable
from typing import Any

import torch
import torch._functorch.predispatch
from torch._export.serde.schema import SCHEMA_VERSION, TREESPEC_VERSION
from torch._export.serde.serialize import (
    _SYM_OPS,
    _TORCH_TO_SERIALIZE_DTYPE,
    _TORCH_TO_SERIALIZE_LAYOUT,
    _TORCH_TO_SERIALIZE_MEMORY_FORMAT,
)
from torch.amp import autocast_mode

__all__ = [
    "DTYPE_CODES",
    "LAYOUT_CODES",
    "MEMORY_FORMAT_CODES",
    "PYTHON_FUNCTIONS",
    "SCHEMA_VERSION",
    "SYMBOLIC_OPERATORS",
    "TREESPEC_VERSION",
    "aten_version",
]

DTYPE_CODES: dict[torch.dtype, int] = {key: int(code) for key, code in _TORCH_TO_SERIALIZE_DTYPE.items()}
LAYOUT_CODES: dict[torch.layout, int] = {key: int(code) for key, code in _TORCH_TO_SERIALIZE_LAYOUT.items()}
MEMORY_FORMAT_CODES: dict[torch.memory_format, int] = {
    key: int(code) for key, code in _TORCH_TO_SERIALIZE_MEMORY_FORMAT.items()
}

SYMBOLIC_OPERATORS: dict[str, Callable[..., Any]] = {
    f"{function.__module__}.{function.__name__}": function
    for function in sorted(_SYM_OPS, key=lambda function: (function.__module__, function.__name__))
}
"""Python functions on symbolic numbers that may be in a program, by the name torch writes."""


def aten_version() -> int:
    """Return the version of the aten operator set that this torch writes into a program."""
    version: int = torch._C._get_max_operator_version()
    return version


def _python_functions() -> dict[str, Callable[..., Any]]:
    """Return what torch's verifier accepts in a program in addition to operators and symbolic arithmetic."""
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
"""Python functions that may be in a program, by the name torch writes."""
