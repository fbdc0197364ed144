"""What `forward` writes and the program would lose: refused, where stock torch says nothing.

A program knows its state by name. Once it is bound, loaded or retargeted, each name has memory of its own,
which keeps its shape and dtype.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping

import torch
from torch.export import ExportedProgram
from torch.export.graph_signature import InputKind
from torch.fx import Node
from torch.multiprocessing.reductions import StorageWeakRef

from fakexport._torch.operator_effects import effects_of
from fakexport._torch.operator_registry import OpOverload
from fakexport._torch.operator_schema import argument_values
from fakexport._torch.wrapper_subclasses import is_wrapper
from fakexport.diagnostics import Span
from fakexport.error import FakexportError
from fakexport.fake import is_fake
from fakexport.program import names_by_tensor, source_span, tensor_identity, written_state

from .python_effects import PythonEffect

_STATE = (InputKind.PARAMETER, InputKind.BUFFER, InputKind.CONSTANT_TENSOR)
_OWN_MEMORY = "write to a buffer with memory, shape and dtype of its own, and take views of it in `forward`"
_OF_NO_MODULE = (
    "the tensor belongs to no module: it is a variable of a file or the like, and other readers of it see "
    "the writes"
)
_OF_NUMPY = "the memory belongs to an array of NumPy or to another library, which sees the writes"


class WriteLost(FakexportError, RuntimeError):
    """The program would not keep what `forward` writes as the model keeps it.

    Args:
        text: Which tensor, and why.
        span: The user's line that writes, or the first one that uses the tensor.
        fix: What to do, as an imperative.
    """

    def __init__(self, text: str, span: Span | None, fix: str = _OWN_MEMORY) -> None:
        super().__init__(text)
        self.span = span
        self.fix = fix


def refuse_lost_writes(program: ExportedProgram, effects: Iterable[PythonEffect]) -> None:
    """Raise `WriteLost` for the first write that the program would lose.

    - It reads a parameter, buffer or tensor that `forward` exchanges for another one that cannot be written
      back: `assigned_buffers` has done so for buffers of equal shape and dtype.
    - It writes to one of two views of the same memory.
    - It writes to a real tensor, which is none of the model: the trace itself has written to it.
    """
    placeholders = {node.name: node for node in program.graph.find_nodes(op="placeholder")}
    nodes = {
        str(spec.target): placeholders[spec.arg.name]
        for spec in program.graph_signature.input_specs
        if spec.kind in _STATE
    }
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
                f"forward reads {name} and exchanges it for another tensor: every call of the program reads "
                "the first one"
            )
            raise WriteLost(text, effect.span or source_span(read[name]))


def _refuse_writes_in_place(
    program: ExportedProgram, held: Mapping[str, torch.Tensor], nodes: Mapping[str, Node]
) -> None:
    real = {
        name
        for name, tensor in held.items()
        if name in program.constants and name in nodes and not is_fake(tensor)
    }
    for name in sorted(real):
        if _is_plain(held[name]) and not held[name].untyped_storage().resizable():
            for writer in _writers_of_copies(nodes[name]):
                raise WriteLost(_OF_NUMPY, source_span(writer))
    for name in sorted(written_state(program) & held.keys() & nodes.keys()):
        span = next(filter(None, map(source_span, nodes[name].users)), None)
        if name in real:
            raise WriteLost(_OF_NO_MODULE, span)
        for other, view in held.items():
            if other != name and _share_memory(held[name], view):
                text = f"{name} and {other} are views of the same memory, and a program knows tensors by name"
                raise WriteLost(text, span)


def _is_plain(tensor: torch.Tensor) -> bool:
    return not is_wrapper(tensor) and tensor.layout is torch.strided


def _share_memory(one: torch.Tensor, other: torch.Tensor) -> bool:
    """Return whether two different views look at one memory; tied tensors are the same view."""
    if not all(_is_plain(each) and each.numel() for each in (one, other)):
        return False
    if StorageWeakRef(one.untyped_storage()) != StorageWeakRef(other.untyped_storage()):
        return False
    return tensor_identity(one) != tensor_identity(other)


def _writers_of_copies(constant: Node) -> Iterator[Node]:
    """Yield the operators that write to what a constant becomes in each call, which torch copies first."""
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
