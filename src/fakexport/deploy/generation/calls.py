"""The prefill and decode programs of a bundle, and the state that is passed between them."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from functools import cached_property
from typing import cast

import torch
from torch.export import ExportedProgram
from torch.fx import Node

from fakexport.archive import Bundle
from fakexport.exporting.program import facts_of, plain_name, user_outputs, written_state
from fakexport.files.documents import CallRecord, are_divided

from ..artifact import DeployError
from ..loaded_program import LoadedProgram
from ..signature import Signature
from ..size_ranges import LoadedRanges, check_same_state, common_signature

HOW_TO_EXPORT = "use `fakexport export SOURCE --workload generate -o FILE` to write a bundle for generation"


@dataclass(frozen=True)
class Call:
    """One step of generation with a bundle: its program, and the roles of the program's inputs and outputs.

    Args:
        method: Method name of the program.
        programs: The programs by method, if several divide the sizes of a call among them. `program` is then
            the first.
    """

    method: str
    record: CallRecord
    program: ExportedProgram
    signature: Signature
    programs: Mapping[str, ExportedProgram]

    @cached_property
    def run(self) -> LoadedProgram | LoadedRanges:
        """The program as a callable. Raises a `WeightsNotBoundError` if the program has no weights."""
        return LoadedRanges(self.programs) if len(self.programs) > 1 else LoadedProgram(self.program)

    @property
    def batch(self) -> int | None:
        """The fixed number of sequences per call; None if it is dynamic."""
        return self._fixed_size(0)

    @property
    def length(self) -> int | None:
        """The fixed number of tokens per sequence; None if it is dynamic."""
        return self._fixed_size(1)

    def _fixed_size(self, index: int) -> int | None:
        tokens = next(tensor for tensor in self.signature.inputs if tensor.name == self.record.tokens)
        size = tokens.shape[index]
        return size.plus if size.symbol is None and size.is_checked else None

    @property
    def vocabulary(self) -> int | None:
        """Number of rows of the embedding table that token ids index; None if none is indexed directly."""
        places = self.program.graph_signature.user_inputs
        names = dict(zip(self.inputs, places, strict=True))
        read = names[self.record.prompt or self.record.tokens]
        rows = [
            node.args[0].meta["val"].shape[0]
            for node in self.program.graph.nodes
            if node.target is torch.ops.aten.embedding.default
            and _viewed(cast(Node, node.args[1])).name == read
        ]
        return min(rows, default=None)

    @property
    def inputs(self) -> list[str]:
        """Names of the inputs."""
        return [tensor.name for tensor in self.signature.inputs]

    def state(self, outputs: Mapping[str, torch.Tensor]) -> dict[str, torch.Tensor]:
        """Return the outputs that the next call takes as inputs, by the name of the state tensor."""
        return {tensor.name: outputs[tensor.output] for tensor in self.record.state}


def calls_of(bundle: Bundle) -> tuple[Call, Call]:
    """Return the prefill and decode programs, or raise a `DeployError` if they do not fit together."""
    prefill, decode = (_call(bundle, workload) for workload in ("prefill", "decode"))
    _check_same_state(prefill, decode)
    return prefill, decode


def check_same_cache(prefill: Call, decode: Call) -> None:
    """Raise if decode writes into a static cache that is not shared with prefill."""
    if decode.record.start is None:
        return
    for name in sorted(written_state(decode.program)):
        check_same_state({**prefill.programs, **decode.programs}, name, what="the cache")


def _call(bundle: Bundle, workload: str) -> Call:
    records = {method: facts_of(program).call for method, program in bundle.items()}
    found = {
        method: bundle[method]
        for method, record in records.items()
        if record is not None and record.workload == workload
    }
    if len(found) != 1 and not are_divided(facts_of(program).sizes for program in found.values()):
        count = "no program" if not found else f"{len(found)} programs"
        raise DeployError(
            f"the bundle has {count} for {workload} (its methods are {', '.join(bundle)}): {HOW_TO_EXPORT}"
        )
    method, record = next(
        (method, record) for method, record in records.items() if method in found and record
    )
    if any(records[other] != record for other in found):
        raise DeployError(f"the programs for {workload} have different inputs or outputs: {', '.join(found)}")
    signature = common_signature([Signature.of(program) for program in found.values()])
    call = Call(method, record, bundle[method], signature, found)
    _check_names(call)
    return call


def _check_names(call: Call) -> None:
    """Check that a call record refers only to existing inputs and outputs and, for decode, to all inputs."""
    record, signature = call.record, call.signature
    named = [record.tokens, record.mask, record.positions, record.start]
    if record.workload == "prefill":
        named.append(record.prompt)
    known = {name for name in named if name is not None}
    state = {tensor.input for tensor in record.state if tensor.input is not None}
    inputs, outputs = {tensor.name for tensor in signature.inputs}, {leaf.name for leaf in signature.outputs}
    missing = sorted((known | state) - inputs) or sorted(
        {record.logits, *(tensor.output for tensor in record.state)} - outputs
    )
    if missing:
        raise DeployError(
            f"the archive's metadata lists {missing[0]}, but {call.method} has no such input or output"
        )
    rank = next(len(tensor.shape) for tensor in signature.inputs if tensor.name == record.tokens)
    if rank != 2:
        raise DeployError(
            f"{call.method} expects {record.tokens} with {rank} dimensions instead of 2 (sequences of tokens)"
        )
    if record.workload == "decode" and (others := sorted(inputs - known - state)):
        raise DeployError(f"the archive's metadata does not list the input {others[0]} of {call.method}")


def _check_same_state(prefill: Call, decode: Call) -> None:
    left, taken = ({tensor.name for tensor in call.record.state} for call in (prefill, decode))
    if left != taken:
        name = sorted(left ^ taken)[0]
        leaves = "returns" if name in left else "does not return"
        takes = "expects" if name in taken else "does not expect"
        raise DeployError(
            f"{prefill.method} {leaves} {name}, but {decode.method} {takes} it: they belong to "
            "different models"
        )
    returned = _dtypes(prefill.program)
    wanted = {tensor.name: tensor.dtype for tensor in decode.signature.inputs}
    inputs = {tensor.name: tensor.input for tensor in decode.record.state}
    for tensor in prefill.record.state:
        expected, found = wanted[inputs[tensor.name] or ""], returned[tensor.output]
        if expected != found:
            raise DeployError(
                f"{prefill.method} returns {tensor.name} as {found}, but {decode.method} expects "
                f"{expected}: export both with the same --dtype"
            )


def _dtypes(program: ExportedProgram) -> dict[str, str | None]:
    values = {node.name: node.meta.get("val") for node in program.graph.nodes}
    found: dict[str, str | None] = {}
    for name, each in user_outputs(program):
        value = values.get(getattr(each, "name", None) or "")
        found[name] = plain_name(value.dtype) if isinstance(value, torch.Tensor) else None
    return found


_VIEWS = (
    torch.ops.aten.view.default,
    torch.ops.aten.reshape.default,
    torch.ops.aten.unsqueeze.default,
    torch.ops.aten.squeeze.dim,
)


def _viewed(node: Node) -> Node:
    """Return the node whose result this node is a view of, or the node itself."""
    while node.target in _VIEWS:
        node = cast(Node, node.args[0])
    return node
