"""The parts of an ONNX model, at any depth."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any


def messages(message: Any, kind: str) -> Iterator[Any]:
    """Yield every part of one kind, `NodeProto`: of graphs within nodes, of functions, of sparse tensors."""
    for field, value in message.ListFields():
        if field.message_type is None:
            continue
        for part in [value] if hasattr(value, "ListFields") else value:
            if field.message_type.name == kind:
                yield part
            yield from messages(part, kind)
