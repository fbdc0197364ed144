"""Parameters and buffers that `forward` reaches through a list or the like: `self.kept = [self.weight]`.

torch.export knows those that it finds in modules. The same tensor from a list is a constant of its program,
which no checkpoint has.
"""

from __future__ import annotations

from torch import Tensor
from torch.export import ExportedProgram
from torch.export.graph_signature import InputKind

from fakexport.program import tensor_identity

_NAMED = (InputKind.PARAMETER, InputKind.BUFFER)


def read_state_by_name(program: ExportedProgram) -> None:
    """Replace each constant that is a parameter or buffer by this one, in the program itself."""
    specs = program.graph_signature.input_specs
    placeholders = {node.name: node for node in program.graph.find_nodes(op="placeholder")}
    held = {**program.state_dict, **program.constants}
    named = {
        tensor_identity(held[str(spec.target)]): placeholders[spec.arg.name]
        for spec in reversed(specs)
        if spec.kind in _NAMED
    }
    is_changed = False
    for spec in [spec for spec in specs if spec.kind is InputKind.CONSTANT_TENSOR]:
        tensor = program.constants[str(spec.target)]
        if not isinstance(tensor, Tensor) or (own := named.get(tensor_identity(tensor))) is None:
            continue
        constant = placeholders[spec.arg.name]
        constant.replace_all_uses_with(own)
        program.graph.erase_node(constant)
        specs.remove(spec)
        del program.constants[str(spec.target)]
        is_changed = True
    if is_changed:
        program.graph_module.recompile()
