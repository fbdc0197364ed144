"""Run a program node by node, and record its kernels."""

from __future__ import annotations

import copy
from collections.abc import Iterator, Sequence
from contextlib import ExitStack
from dataclasses import dataclass
from itertools import compress
from typing import Any

from torch.export import ExportedProgram
from torch.export.graph_signature import InputKind, InputSpec, OutputKind
from torch.fx import GraphModule, Interpreter, Node

from fakexport.error import InvalidValue
from fakexport.exporting.program import module_path, target_name, with_open_modes, with_plain_indexing

from .kernels import Kernel, KernelRecord, recorded


@dataclass(frozen=True)
class ProgramRun:
    """The kernels that ran, the outputs, the nodes or literals that these come from, and all main nodes."""

    kernels: list[Kernel]
    outputs: list[Any]
    results: list[Any]
    nodes: list[Node]


def program_run(program: ExportedProgram, leaves: Sequence[Any]) -> ProgramRun:
    """Run a bound program on copies of its flat inputs and of its buffers."""
    copies = iter(copy.deepcopy(leaves))
    inputs = [_input(program, spec, copies) for spec in program.graph_signature.input_specs]
    running: list[Node] = []
    record = KernelRecord(lambda: (next(filter(None, map(module_path, reversed(running))), ""), running[-1]))
    interpreter = _Interpreter(with_plain_indexing(program), running)
    with recorded(record):
        values = interpreter.run(*inputs)
    *nodes, output = interpreter.graph.nodes
    kinds = [spec.kind is OutputKind.USER_OUTPUT for spec in program.graph_signature.output_specs]
    outputs, results = (list(compress(found, kinds)) for found in (values, output.args[0]))
    return ProgramRun(record.kernels, outputs, results, nodes)


def _input(program: ExportedProgram, spec: InputSpec, leaves: Iterator[Any]) -> Any:
    if spec.kind is InputKind.USER_INPUT:
        return next(leaves)
    if spec.target is None:
        raise InvalidValue("the program passes an effect token, so it cannot run node by node")
    held = program.state_dict.get(spec.target, program.constants.get(spec.target))
    return held.detach().clone() if spec.kind is InputKind.BUFFER else held


class _Interpreter(Interpreter):
    """Run a graph and its subgraphs. `running` is the stack of running nodes."""

    def __init__(self, owner: GraphModule, running: list[Node]) -> None:
        super().__init__(owner, graph=with_open_modes(owner))
        self.extra_traceback = False  # If it were true, it would replace the message of an error.
        self._running = running
        self._modes: tuple[Any, ...] = ()
        self._entered = ExitStack()

    def run(self, *args: Any) -> Any:  # type: ignore[override]
        with self._entered:
            return super().run(*args, enable_io_processing=False)

    def run_node(self, n: Node) -> Any:
        modes = n.meta.get("modes", ())
        if modes != self._modes:
            self._entered.close()
            for mode in modes:
                self._entered.enter_context(mode.manager())
            self._modes = modes
        self._running.append(n)
        try:
            return super().run_node(n)
        finally:
            self._running.pop()

    def call_function(self, target: Any, args: Any, kwargs: Any) -> Any:
        if target_name(target) == "higher_order.cond":
            predicate, if_true, if_false, operands = args
            return _Interpreter(if_true if predicate else if_false, self._running).run(*operands)
        return super().call_function(target, args, kwargs)
