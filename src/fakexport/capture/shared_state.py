"""State that a program would write and that something outside of it shares: refused, not lost."""

from __future__ import annotations

from collections.abc import Iterator

import torch
from torch.export import ExportedProgram
from torch.export.graph_signature import InputKind
from torch.multiprocessing.reductions import StorageWeakRef

from fakexport._torch.wrapper_subclasses import is_wrapper
from fakexport.diagnostics import Span
from fakexport.error import FakexportError
from fakexport.fake import is_fake
from fakexport.program import source_span, tensor_identity, written_state


class SharedStateWritten(FakexportError, RuntimeError):
    """`forward` writes to a tensor whose memory is not the program's alone.

    Args:
        text: Which tensor, and what shares it.
        span: The user's line of the first operator that takes it.
    """

    def __init__(self, text: str, span: Span | None) -> None:
        super().__init__(text)
        self.span = span


def refuse_shared_writes(program: ExportedProgram) -> None:
    """Raise `SharedStateWritten` for a program that writes to one of two views of the same memory, or to a
    real tensor, which is none of the model: the trace itself has written to it.

    A program knows its state by name. Once it is bound, loaded or retargeted, each name has its own memory.
    """
    written = written_state(program)
    if not written:
        return
    held = {
        name: tensor
        for name, tensor in {**program.state_dict, **program.constants}.items()
        if isinstance(tensor, torch.Tensor)
    }
    for name in sorted(written & held.keys()):
        tensor = held[name]
        if name in program.constants and not is_fake(tensor):
            raise SharedStateWritten(
                "the tensor belongs to no module: it is a variable of a file or the like, and whoever else "
                "reads it would see the writes",
                _span_of(program, name),
            )
        for other, view in held.items():
            if other != name and _share_memory(tensor, view):
                text = f"{name} and {other} are views of the same memory, and a program knows tensors by name"
                raise SharedStateWritten(text, _span_of(program, name))


def _share_memory(one: torch.Tensor, other: torch.Tensor) -> bool:
    """Return whether two different views look at one memory; tied tensors are the same view."""
    if any(is_wrapper(each) or each.layout is not torch.strided or not each.numel() for each in (one, other)):
        return False
    if StorageWeakRef(one.untyped_storage()) != StorageWeakRef(other.untyped_storage()):
        return False
    return tensor_identity(one) != tensor_identity(other)


def _span_of(program: ExportedProgram, name: str) -> Span | None:
    kinds = (InputKind.PARAMETER, InputKind.BUFFER, InputKind.CONSTANT_TENSOR)
    held = {
        spec.arg.name
        for spec in program.graph_signature.input_specs
        if spec.kind in kinds and spec.target == name
    }

    def spans() -> Iterator[Span | None]:
        for node in program.graph.find_nodes(op="placeholder"):
            if node.name in held:
                yield from map(source_span, node.users)

    return next(filter(None, spans()), None)
