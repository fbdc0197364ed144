"""Reject programs that would silently lose a write by `forward`, or ignore a `torch.func` transform's input.

A program identifies state by name. After binding, loading or retargeting, each name has memory of its own,
with a fixed shape and dtype. A write to memory that two names share, or a write that changes the shape, would
therefore be lost.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping

import torch
from torch.export import ExportedProgram
from torch.export.graph_signature import InputKind
from torch.fx import Node
from torch.multiprocessing.reductions import StorageWeakRef

from fakexport._torch.emulation.wrapper_subclasses import is_wrapper
from fakexport._torch.operators.operator_effects import effects_of
from fakexport._torch.operators.operator_registry import OpOverload
from fakexport._torch.operators.operator_schema import argument_values
from fakexport._torch.tracing.vmap_steps import is_transformed
from fakexport.emulation.fake import is_fake
from fakexport.emulation.history import is_of_other_library
from fakexport.error import FakexportError
from fakexport.exporting.program import (
    input_nodes,
    names_by_tensor,
    reading_span,
    source_span,
    tensor_identity,
    written_state,
)
from fakexport.rules.diagnostics import Span

from .python_effects import PythonEffect

_STATE = (InputKind.PARAMETER, InputKind.BUFFER, InputKind.CONSTANT_TENSOR)
_OWN_MEMORY = (
    "write to a buffer that has its own memory and a fixed shape and dtype, and create views of it in "
    "`forward`"
)
_OF_NO_MODULE = (
    "the tensor does not belong to a module: for example, it may be a global variable, so other code "
    "sees the writes"
)
_OF_NUMPY = "the memory belongs to a NumPy array or to another library, which sees the writes"


class LostWriteError(FakexportError, RuntimeError):
    """`forward` writes to a tensor that outlives the call, and the program would lose this write.

    Args:
        text: A sentence with the tensor and the reason.
        span: The user's line that writes. If it is unknown, the first line that uses the tensor.
        fix: The fix, as an imperative sentence.
        label: What the line does.
    """

    def __init__(
        self, text: str, span: Span | None, fix: str = _OWN_MEMORY, label: str = "written here"
    ) -> None:
        super().__init__(text)
        self.span = span
        self.fix = fix
        self.label = label


def refuse_lost_writes(program: ExportedProgram, effects: Iterable[PythonEffect]) -> None:
    """Raise `LostWriteError` for the first write that the program would lose:

    - `forward` reads a parameter, buffer or tensor and then replaces it with a tensor that cannot be copied
      back (`assigned_buffers` handles buffers of equal shape and dtype).
    - `forward` writes to one of two views of the same memory.
    - `forward` writes to a real tensor that is not part of the model. The trace has already written to it.
    """
    nodes = {str(spec.target): node for spec, node in input_nodes(program) if spec.kind in _STATE}
    held = {
        name: tensor
        for name, tensor in {**program.state_dict, **program.constants}.items()
        if isinstance(tensor, torch.Tensor)
    }
    _refuse_exchanges(held, nodes, effects)
    _refuse_writes_in_place(program, held, nodes)


def _refuse_exchanges(
    held: Mapping[str, torch.Tensor], nodes: Mapping[str, Node], effects: Iterable[PythonEffect]
) -> None:
    read: dict[str, Node] = {}
    for names in names_by_tensor(held):
        users = [node for name in names if name in nodes for node in nodes[name].users]
        read.update(dict.fromkeys(names, users[0]) if users else {})
    for effect in effects:
        name = f"{effect.module_path}.{effect.what}".lstrip(".")
        if effect.kind == "attribute" and name in read:
            text = (
                f"forward reads {name} and then replaces it with a different tensor, but every call of "
                "the program reads the original one"
            )
            raise LostWriteError(text, effect.span or source_span(read[name]))


def _refuse_writes_in_place(
    program: ExportedProgram, held: Mapping[str, torch.Tensor], nodes: Mapping[str, Node]
) -> None:
    real = {
        name
        for name, tensor in held.items()
        if name in program.constants and name in nodes and not is_fake(tensor)
    }
    for name in sorted(real):
        if is_of_other_library(held[name]):
            for writer in _writers_of_copies(nodes[name]):
                raise LostWriteError(_OF_NUMPY, source_span(writer))
    for name in sorted(written_state(program) & held.keys() & nodes.keys()):
        span = reading_span(nodes[name])
        if name in real:
            raise LostWriteError(_OF_NO_MODULE, span)
        for other, view in held.items():
            if other != name and _share_memory(held[name], view):
                text = (
                    f"{name} and {other} are views of the same memory, but a program stores them as "
                    "separate tensors"
                )
                raise LostWriteError(text, span)


def _is_plain(tensor: torch.Tensor) -> bool:
    return not is_wrapper(tensor) and tensor.layout is torch.strided


def _share_memory(one: torch.Tensor, other: torch.Tensor) -> bool:
    """Return whether two tensors are different views of the same memory. Tied tensors are the same view."""
    if not all(_is_plain(each) and each.numel() for each in (one, other)):
        return False
    if StorageWeakRef(one.untyped_storage()) != StorageWeakRef(other.untyped_storage()):
        return False
    return tensor_identity(one) != tensor_identity(other)


def _writers_of_copies(constant: Node) -> Iterator[Node]:
    """Yield the nodes that write to a copy of a constant. The program makes this copy in each call."""
    pending = [user for user in constant.users if effects_of(user.target).is_lift]
    while pending:
        value = pending.pop()
        for user in value.users:
            if not isinstance(user.target, OpOverload):
                continue
            effects, given = effects_of(user.target), argument_values(user.target, user.args, user.kwargs)
            if any(given.get(name) is value for _, name in effects.writes):
                yield user
            elif effects.aliased is not None and given.get("copy") is not True:
                pending.append(user)


class FunctorchError(FakexportError, RuntimeError):
    """A transform's input became a constant of the program, so the program would ignore the actual input."""

    def __init__(self, name: str, span: Span | None) -> None:
        super().__init__(
            "torch.export recorded the input of a torch.func transform (grad, vjp, jacrev, ...) as the "
            f"constant {name}: the program would ignore the actual input"
        )
        self.span = span


def refuse_lost_transforms(program: ExportedProgram) -> None:
    """Raise `FunctorchError` if a constant of the program is a tensor that a transform wraps.

    Export tracks the model's input tensors, but not the wrappers that `torch.func.grad` creates for them.
    """
    for spec, node in input_nodes(program):
        constant = (
            program.constants.get(spec.target or "") if spec.kind is InputKind.CONSTANT_TENSOR else None
        )
        if isinstance(constant, torch.Tensor) and is_transformed(constant):
            raise FunctorchError(str(spec.target), reading_span(node))
