"""The names of operators in a document, and what is known about them without importing torch."""

from __future__ import annotations

import re
import sys
from collections.abc import Mapping, Sequence

from fakexport._torch.operators.operator_reach import outside_reason
from fakexport._torch.operators.packaged_operators import TORCH_NAMESPACES, is_there
from fakexport.files.documents import DocumentError

OF_FBGEMM = dict.fromkeys(
    ("fbgemm.quantize_fp8_per_row.default", "fbgemm.f8f8bf16_rowwise.default"),
    "fbgemm_gpu.experimental.gen_ai",
)
"""Operators of FBGEMM that fakexport can replace -> the module that registers them."""
OVERLOAD = re.compile(r"torch\.ops\.([A-Za-z_]\w*)\.([A-Za-z_]\w*)\.([A-Za-z_]\w*)", re.ASCII)
_OPERATORS = "torch.ops."
_MOST_NAMED = 8


def missing_reason(name: str, modules: Mapping[str, str]) -> str | None:
    """Return why this process cannot call an operator, or None if it can.

    torch is imported only if it is needed for the answer.

    Args:
        name: The name that torch writes, such as `torch.ops.aten.add.Tensor`.
        modules: Names of library operators -> the Python modules that register them, if known.
    """
    found = None if "torch" in sys.modules else is_there(name)
    if found is not None:
        return None if found else unregistered([name.removeprefix(_OPERATORS)], modules)
    from .operator_lookup import Operators

    try:
        Operators(modules, trust=True).target(name)
    except DocumentError as error:
        return error.reason
    return None


def reach_of(name: str) -> str | None:
    """Return the side effect of an operator that only trusted programs may call, or None for other operators.

    The name is the one that torch writes, such as `torch.ops.aten.from_file.default`.
    """
    return outside_reason(name.removeprefix(_OPERATORS)) if OVERLOAD.fullmatch(name) else None


def is_of_a_library(name: str) -> bool:
    """Return whether an operator such as `torch.ops.acme.scale.default` is defined outside torch."""
    match = OVERLOAD.fullmatch(name)
    return match is not None and match[1] not in TORCH_NAMESPACES


def short_name(name: str) -> str:
    """Return the name without `torch.ops.`, and without the rest of a very long name."""
    return name.removeprefix(_OPERATORS)[:200]


def unregistered(names: Sequence[str], modules: Mapping[str, str]) -> str:
    """Return the error for operators that are not registered, and how to register them."""
    modules = {**modules, **OF_FBGEMM}
    libraries = ", ".join(
        dict.fromkeys(f"`{modules.get(name, name.partition('.')[0][:80])}`" for name in names)
    )
    if len(names) == 1:
        what, of_it = f"the operator {names[0][:200]} is", "the operator library "
    else:
        listed = ", ".join(name[:200] for name in names[:_MOST_NAMED])
        more = f" and {len(names) - _MOST_NAMED} more" if len(names) > _MOST_NAMED else ""
        what, of_it = f"the operators {listed}{more} are", "the code that registers "
    if all(name in modules for name in names):
        return f"{what} not registered: import {libraries} first, or pass it with --library"
    return f"{what} not registered: import {of_it}{libraries} first, or pass its file with --library"
