"""Detect or repair faults of a traced program: results and weights stored as constants, and failed operators.

If a model catches the error of an operator, torch leaves the operator in the program.

torch.export finds parameters and buffers in modules. If `forward` accesses one through a list or similar
container, as in `self.kept = [self.weight]`, the same tensor becomes a constant of the program, which
checkpoints do not contain.
"""

from __future__ import annotations

from torch import Tensor, strided
from torch.export import ExportedProgram
from torch.export.graph_signature import InputKind
from torch.fx import Node
from torch.multiprocessing.reductions import StorageWeakRef

from fakexport._torch.emulation.fake_tensors import FakeTensor
from fakexport._torch.operators.operator_registry import OpOverload
from fakexport._torch.operators.operator_schema import returns_tensor
from fakexport.exporting.program import graph_modules, input_nodes, tensor_identity

_NAMED = (InputKind.PARAMETER, InputKind.BUFFER)


def read_state_by_name(program: ExportedProgram) -> None:
    """Replace constants that are the same tensor as a parameter or buffer with that parameter or buffer."""
    inputs = input_nodes(program)
    held = {**program.state_dict, **program.constants}
    named = {
        tensor_identity(held[str(spec.target)]): node
        for spec, node in reversed(inputs)
        if spec.kind in _NAMED
    }
    is_changed = False
    for spec, node in inputs:
        tensor = held.get(spec.target or "") if spec.kind is InputKind.CONSTANT_TENSOR else None
        if not isinstance(tensor, Tensor) or (own := named.get(tensor_identity(tensor))) is None:
            continue
        node.replace_all_uses_with(own)
        program.graph.erase_node(node)
        program.graph_signature.input_specs.remove(spec)
        del program.constants[str(spec.target)]
        is_changed = True
    if is_changed:
        program.graph_module.recompile()


def has_lost_result(program: ExportedProgram) -> bool:
    """Return whether the trace treats the result of an operator as a constant.

    C++ functions such as `torch.full_like` return a copy of the operator's result if something in Python
    holds that result. A trace knows the result, but not the copy. Both have the same memory.
    """
    constants = {memory for value in program.constants.values() if (memory := _memory(value)) is not None}
    return bool(constants) and any(
        (memory := _memory(node.meta.get("val"))) in constants
        and all(_memory(source.meta.get("val")) != memory for source in node.all_input_nodes)
        for node in program.graph.nodes
        if node.op == "call_function"
    )


def _memory(value: object) -> StorageWeakRef | None:
    if not isinstance(value, FakeTensor) or value.layout is not strided:
        return None
    return StorageWeakRef(value.untyped_storage())


def drop_refused_nodes(program: ExportedProgram) -> None:
    """Remove the nodes of operators that raised an error during the trace.

    torch adds a node before it runs the operator, and does not remove the node if the operator raises. The
    program would then raise in each call, although the model continues.
    """
    for module in graph_modules(program.graph_module):
        refused = [node for node in module.graph.nodes if _has_raised(node)]
        for node in reversed(refused):
            module.graph.erase_node(node)
        if refused:
            module.recompile()


def _has_raised(node: Node) -> bool:
    """Return whether a node has no result although its operator returns tensors."""
    is_used = bool(node.users) or node.meta.get("val") is not None
    return not is_used and isinstance(node.target, OpOverload) and returns_tensor(node.target)
