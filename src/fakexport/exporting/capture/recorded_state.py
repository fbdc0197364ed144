"""Find the names of the tensors that one call of a language model passes to the next call."""

from __future__ import annotations

from dataclasses import replace

from torch.export import ExportedProgram

from fakexport.error import InvalidValue
from fakexport.exporting.program import leaf_names, output_names, user_inputs
from fakexport.files.documents import CallRecord, StateTensor


def with_state(call: CallRecord, program: ExportedProgram) -> CallRecord:
    """Return the record with the state tensors added.

    In a decode program, these are inputs and outputs. In a prefill program, they are only outputs. A cache in
    buffers of the program is not included. The name of a tensor is its path in the inputs, which is equal to
    its path in the outputs.

    Raises:
        ValueError: a state tensor of a decode program is only an input or only an output.
    """
    paths = (name.partition(".")[2] for name in leaf_names(program.call_spec.in_spec))
    inputs = {path: given.name for path, (given, _) in zip(paths, user_inputs(program), strict=True)}
    outputs = [name for name in output_names(program) if name != call.logits]
    if call.workload == "prefill":
        return replace(call, state=tuple(StateTensor(name, None, name) for name in outputs))
    known = {call.tokens, call.mask, call.positions, call.start}
    if (taken := {path for path in inputs if path not in known}) != set(outputs):
        name = sorted(taken ^ set(outputs))[0]
        raise InvalidValue(f"the decode program must have {name} both as an input and as an output")
    return replace(call, state=tuple(StateTensor(name, inputs[name], name) for name in outputs))
