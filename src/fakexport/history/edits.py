"""Noticing what happens to deferred tensors while no one records: their replay would silently miss it."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any

import torch

from fakexport._torch.fake_tensors import FakeTensor
from fakexport._torch.operator_effects import effects_of

from .records import TensorRecord, Unknown, leaves
from .references import has_other_memory, has_record, note_clone, record_of, set_record
from .replay import reading_span

_clone = torch.ops.aten.clone.default


def note_edit(run: Callable[..., Any], operator: Any, args: Sequence[Any], kwargs: Mapping[str, Any]) -> Any:
    """Observer of a mode outside of its recording: marks the memory that an operator writes into."""
    result = run()
    if torch.compiler.is_exporting():
        return result
    if operator is _clone and isinstance(args[0], FakeTensor):
        note_clone(args[0], result)
    effects = effects_of(operator)
    if effects.aliased is not None or effects.is_identity:
        _follow_views(args, result, effects.is_identity)
    for index, name in effects.writes:
        for tensor in leaves(args[index] if index < len(args) else kwargs.get(name)):
            if isinstance(tensor, FakeTensor) and has_record(tensor):
                where = reading_span()
                at = "" if where is None else f" at {where.path}:{where.line}"
                record_of(tensor).storage.edits.append(f"changed by {operator}{at}")
    return result


def edit_of(fake: FakeTensor) -> str | None:
    """Return what was done to a fake tensor or its memory outside of the recording, or None."""
    edits = record_of(fake).storage.edits
    if edits:
        return edits[-1]
    return "given different data by `.data = ...`" if has_other_memory(fake) else None


def _follow_views(args: Sequence[Any], result: Any, is_identity: bool) -> None:
    """Let views made outside share the record of the memory, so that a write through them is seen."""
    source = args[0] if args else None
    if not isinstance(source, FakeTensor) or not has_record(source):
        return
    record = record_of(source)
    if not is_identity:
        record = TensorRecord(Unknown("a view that was created outside of the recording"), record.storage)
    for tensor in leaves(result):
        if isinstance(tensor, FakeTensor) and not has_record(tensor):
            set_record(tensor, record)
