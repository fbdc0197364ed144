"""Find the names of the tensors that one call of a language model passes to the next call."""

from __future__ import annotations

from dataclasses import replace

from torch.export import ExportedProgram

from fakexport.error import InvalidValue
from fakexport.exporting.interface import leaf_names
from fakexport.exporting.program import output_names, user_inputs
from fakexport.files.documents import CallRecord, StateTensor

_LEAST = 2
"""The lower bound that torch gives to a dynamic size. Programs also run with 0 and 1."""


def with_state(call: CallRecord, program: ExportedProgram) -> CallRecord:
    """Return the record with the state tensors added.

    In a prefill program, these are only outputs. In other programs, they are inputs and outputs. A cache in
    buffers of the program is not included. The name of a tensor is its path in the inputs, which is equal to
    its path in the outputs.

    Raises:
        ValueError: a state tensor of a program that reads a cache is only an input or only an output.
    """
    paths = (name.partition(".")[2] for name in leaf_names(program.call_spec.in_spec))
    inputs = {path: given.name for path, (given, _) in zip(paths, user_inputs(program), strict=True)}
    outputs = [name for name in output_names(program) if name != call.logits]
    if call.workload == "prefill":
        return replace(call, state=tuple(StateTensor(name, None, name) for name in outputs))
    if call.workload == "chunk" and call.mask is not None:
        _allow_short_texts(program, inputs[call.mask])
    known = {call.tokens, call.mask, call.positions, call.start}
    if (taken := {path for path in inputs if path not in known}) != set(outputs):
        name = sorted(taken ^ set(outputs))[0]
        raise InvalidValue(f"the {call.workload} program must have {name} both as an input and as an output")
    return replace(call, state=tuple(StateTensor(name, inputs[name], name) for name in outputs))


def _allow_short_texts(program: ExportedProgram, mask: str) -> None:
    """Remove the lower bound on the length of the mask, which is the sum of the lower bounds of the cache and
    the new tokens. An empty cache and one token are allowed.
    """
    node = next(node for _, node in user_inputs(program) if node.name == mask)
    length = node.meta["val"].shape[1]
    symbols = set() if isinstance(length, int) else length.node.expr.free_symbols
    for symbol in symbols & program.range_constraints.keys():
        bounds = program.range_constraints[symbol]
        program.range_constraints[symbol] = type(bounds)(min(bounds.lower, _LEAST), bounds.upper)
