"""The two programs of a bundle that generate, and what one leaves to the other."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from functools import cached_property
from typing import cast

import torch
from torch.export import ExportedProgram
from torch.fx import Node

from fakexport.archive import Bundle
from fakexport.documents import CallRecord
from fakexport.program import facts_of, plain_name, user_outputs, written_state

from ..artifact import DeployError
from ..loaded_program import LoadedProgram
from ..signature import Signature

HOW_TO_EXPORT = "`fakexport export SOURCE --workload generate -o FILE` writes a bundle that generates"


@dataclass(frozen=True)
class Call:
    """A program that generates: its method in the bundle, and the part of each of its inputs and outputs."""

    method: str
    record: CallRecord
    program: ExportedProgram
    signature: Signature

    @cached_property
    def run(self) -> LoadedProgram:
        """The program, to be called.

        Raises:
            UnboundProgram: it has no weights.
        """
        return LoadedProgram(self.program)

    @property
    def batch(self) -> int | None:
        """The one number of sequences that it takes; None if it takes any."""
        return self._fixed_size(0)

    @property
    def length(self) -> int | None:
        """The one number of tokens that it takes of each; None if it takes any."""
        return self._fixed_size(1)

    def _fixed_size(self, index: int) -> int | None:
        tokens = next(tensor for tensor in self.signature.inputs if tensor.name == self.record.tokens)
        size = tokens.shape[index]
        return size.plus if size.symbol is None and size.is_checked else None

    @property
    def vocabulary(self) -> int | None:
        """How many tokens there are: the rows of the table that the tokens are looked up in; None if they are
        not looked up as they come.
        """
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
        """The names of its inputs."""
        return [tensor.name for tensor in self.signature.inputs]

    def state(self, outputs: Mapping[str, torch.Tensor]) -> dict[str, torch.Tensor]:
        """Return what a call leaves to the next, by the names of the state."""
        return {tensor.name: outputs[tensor.output] for tensor in self.record.state}


def calls_of(bundle: Bundle) -> tuple[Call, Call]:
    """Return prefill and decode, once they are found to fit together.

    Raises:
        DeployError: one of them is missing, or there are two; the record does not fit the program, or the
            state that prefill leaves is not that which decode takes.
    """
    prefill, decode = (_call(bundle, workload) for workload in ("prefill", "decode"))
    _check_same_state(prefill, decode)
    return prefill, decode


def check_same_cache(prefill: Call, decode: Call) -> None:
    """Refuse programs that keep their caches in buffers, each in its own.

    Raises:
        DeployError: decode writes into a buffer that prefill does not have.
    """
    if decode.record.start is None:
        return
    of_prefill, of_decode = prefill.program.constants, decode.program.constants
    for name in sorted(written_state(decode.program)):
        if of_prefill.get(name) is not of_decode.get(name):
            raise DeployError(
                f"{prefill.method} and {decode.method} each have their own {name}, a cache that they share: "
                "bind them in one bundle"
            )


def _call(bundle: Bundle, workload: str) -> Call:
    found = [
        (method, record)
        for method in bundle
        if (record := facts_of(bundle[method]).call) is not None and record.workload == workload
    ]
    if len(found) != 1:
        count = "no program" if not found else f"{len(found)} programs"
        raise DeployError(f"{count} for {workload} among {', '.join(bundle)}: {HOW_TO_EXPORT}")
    method, record = found[0]
    call = Call(method, record, bundle[method], Signature.of(bundle[method]))
    _check_names(call)
    return call


def _check_names(call: Call) -> None:
    """Refuse a record that names what the program does not have, or leaves out what it needs."""
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
        raise DeployError(f"the archive says that {call.method} has {missing[0]}, which it does not have")
    rank = next(len(tensor.shape) for tensor in signature.inputs if tensor.name == record.tokens)
    if rank != 2:
        raise DeployError(
            f"{call.method} takes {record.tokens} of {rank} dimensions, not sequences of tokens"
        )
    if record.workload == "decode" and (others := sorted(inputs - known - state)):
        raise DeployError(f"the archive does not say what the input {others[0]} of {call.method} is")


def _check_same_state(prefill: Call, decode: Call) -> None:
    left, taken = ({tensor.name for tensor in call.record.state} for call in (prefill, decode))
    if left != taken:
        name = sorted(left ^ taken)[0]
        leaves = "leaves" if name in left else "does not leave"
        takes = "takes" if name in taken else "does not take"
        raise DeployError(
            f"{prefill.method} {leaves} {name}, and {decode.method} {takes} it: they are of two models"
        )
    returned = _dtypes(prefill.program)
    wanted = {tensor.name: tensor.dtype for tensor in decode.signature.inputs}
    inputs = {tensor.name: tensor.input for tensor in decode.record.state}
    for tensor in prefill.record.state:
        expected, found = wanted[inputs[tensor.name] or ""], returned[tensor.output]
        if expected != found:
            raise DeployError(
                f"{prefill.method} leaves {tensor.name} as {found}, but {decode.method} takes it as "
                f"{expected}: export both with one --dtype"
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
    """Return the node whose values a node has in another shape."""
    while node.target in _VIEWS:
        node = cast(Node, node.args[0])
    return node
