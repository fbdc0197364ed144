"""Which tensors one call of a language model leaves to the next, read off its program by name."""

from __future__ import annotations

from dataclasses import replace

from torch.export import ExportedProgram
from torch.export.graph_signature import InputKind

from fakexport.documents import CallRecord, StateTensor
from fakexport.error import InvalidValue
from fakexport.program import leaf_names, output_names


def with_state(call: CallRecord, program: ExportedProgram) -> CallRecord:
    """Return the record with the state: in decode each tensor as input and output, in prefill as output. A
    cache that the program keeps is none of it.

    A tensor has one path in what the program takes and in what it returns, which is its name.

    Raises:
        ValueError: the program takes a state that it does not return, or the other way around.
    """
    paths = (name.partition(".")[2] for name in leaf_names(program.call_spec.in_spec))
    arguments = [
        spec.arg for spec in program.graph_signature.input_specs if spec.kind is InputKind.USER_INPUT
    ]
    inputs = {path: argument.name for path, argument in zip(paths, arguments, strict=True)}
    outputs = [name for name in output_names(program) if name != call.logits]
    if call.workload == "prefill":
        return replace(call, state=tuple(StateTensor(name, None, name) for name in outputs))
    known = {call.tokens, call.mask, call.positions, call.start}
    if (taken := {path for path in inputs if path not in known}) != set(outputs):
        name = sorted(taken ^ set(outputs))[0]
        raise InvalidValue(f"decode does not both take and return {name}")
    return replace(call, state=tuple(StateTensor(name, inputs[name], name) for name in outputs))
