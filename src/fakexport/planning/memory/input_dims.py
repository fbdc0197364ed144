"""What the dimensions of a program's inputs mean: batch, context, or cached tokens."""

from __future__ import annotations

import re
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

import torch
from torch.export import ExportedProgram
from torch.export.graph_signature import InputKind

from fakexport._torch.tracing.symbolic_numbers import expression_of
from fakexport.exporting.program import input_nodes

_INTEGERS = (torch.int64, torch.int32)
_NOT_TEXT = re.compile(r"grid|size|shape|length")
_EMBEDDED = re.compile(r"(?:\w+_)?inputs_embeds")
_CACHED = re.compile(r"(?!.*position)(?:(?:past|cache)(?:[_.\d]|$)|(?:\w+_)?cache(?:s|[_.\d]|$))")


@dataclass(frozen=True)
class InputDim:
    """One dimension of a program's input.

    Args:
        dim: Index of the dimension, from 0.
        size: The size: a number, or an expression over symbols.
        role: `batch`, `context`, `cached` (context without the new tokens), or "".
    """

    name: str
    dim: int
    size: Any
    role: str

    @property
    def is_query(self) -> bool:
        """Whether the dimension counts only the new tokens; the dimension of a mask counts all tokens."""
        return self.role == "context" and "mask" not in self.name

    def __str__(self) -> str:
        return f"{self.name}.{self.dim}"


def input_dims(program: ExportedProgram) -> Iterator[InputDim]:
    for spec, node in input_nodes(program):
        value = node.meta.get("val")
        if spec.kind is InputKind.USER_INPUT and isinstance(value, torch.Tensor):
            for index, size in enumerate(value.shape):
                expression = expression_of(size) if isinstance(size, torch.SymInt) else int(size)
                yield InputDim(node.name, index, expression, role_of(node.name, value, index))


def role_of(name: str, value: torch.Tensor, index: int) -> str:
    """Return the role of an input's dimension: `batch`, `context`, `cached` or ""."""
    if is_cache(name):
        return "batch" if index == 0 else "cached" if (index, value.dim()) == (2, 4) else ""
    if index == 0:
        return "batch"
    is_tokens = value.dim() == 2 and value.dtype in _INTEGERS and not _NOT_TEXT.search(name)
    is_mask = value.dim() == 2 and name.endswith("attention_mask")
    is_embedded = value.dim() == 3 and _is_text(name)
    return "context" if index == 1 and (is_tokens or is_mask or is_embedded) else ""


def is_cache(name: str) -> bool:
    """Return whether an input or output name denotes a cache: `past_key_values_0`, `cache.0.1`."""
    return _CACHED.match(name) is not None


def _is_text(name: str) -> bool:
    return name.endswith("input_ids") or _EMBEDDED.fullmatch(name) is not None
