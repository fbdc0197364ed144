"""Running a program operation by operation."""

from __future__ import annotations

import copy
from collections.abc import Callable, Mapping
from contextlib import ExitStack
from dataclasses import dataclass
from itertools import compress
from typing import Any

import torch
from torch.export import ExportedProgram
from torch.export.graph_signature import InputKind, OutputKind

from fakexport._torch.kernel_observer import unobserved
from fakexport._torch.operator_registry import HigherOrderOperator
from fakexport._torch.pytree import tree_leaves
from fakexport.program import target_name
from fakexport.python_source import Body, Context, Operation, Stored, Value, mapped, read_program

from .kernels import Kernel, KernelRecord, recorded


@dataclass(frozen=True)
class ProgramRun:
    """A run of a program.

    Args:
        kernels: Those that ran, each with its operation.
        outputs: The leaves of the output.
        results: The value of the program for each of them.
        operations: Those of the main graph.
    """

    kernels: list[Kernel]
    outputs: list[Any]
    results: list[Any]
    operations: list[Operation]


def program_run(program: ExportedProgram, args: tuple[Any, ...], kwargs: Mapping[str, Any]) -> ProgramRun:
    """Run a bound program on copies of the inputs and of its buffers.

    Raises:
        PythonSourceError: the program holds what cannot be run operation by operation.
    """
    reading = read_program(program)
    leaves = iter(tree_leaves(copy.deepcopy((tuple(args), dict(kwargs)))))
    values: dict[Value, Any] = {}
    for spec in program.graph_signature.input_specs:
        value = reading.names[spec.arg.name]
        if spec.kind is InputKind.USER_INPUT:
            values[value] = next(leaves)
        elif isinstance(value, Stored):
            held = program.state_dict.get(value.name, program.constants.get(value.name))
            assert held is not None
            values[value] = held.detach().clone() if spec.kind is InputKind.BUFFER else held
    running = _Running(values)
    with recorded(running.record):
        results = running.body(reading.body)
    kinds = [spec.kind is OutputKind.USER_OUTPUT for spec in program.graph_signature.output_specs]
    outputs, behind = list(compress(results, kinds)), list(compress(reading.body.result, kinds))
    return ProgramRun(running.record.kernels, outputs, behind, reading.body.operations)


class _Running:
    def __init__(self, values: dict[Value, Any]) -> None:
        self._values = values
        self._operation: Operation | None = None
        self.record = KernelRecord(self._where)

    def _where(self) -> tuple[str, Operation | None]:
        calls = self._operation.calls if self._operation else None
        return (calls[-1].path if calls else ""), self._operation

    def body(self, body: Body) -> Any:
        """Run operations whose inputs have values, and return what they return."""
        entered: tuple[Context, ...] = ()
        with ExitStack() as stack:
            for operation in body.operations:
                if operation.contexts != entered:
                    stack.close()
                    for context in operation.contexts:
                        stack.enter_context(_mode(context))
                    entered = operation.contexts
                self._values[operation] = self._called(operation)
        return self._resolved(body.result)

    def _called(self, operation: Operation) -> Any:
        outer, self._operation = self._operation, operation
        try:
            if target_name(operation.target) == "higher_order.cond":
                predicate, if_true, if_false, operands = self._resolved(operation.args)
                return if_true(*operands) if predicate else if_false(*operands)
            args, kwargs = self._resolved(operation.args), self._resolved(operation.kwargs)
            if isinstance(operation.target, HigherOrderOperator):
                with unobserved():
                    return operation.target(*args, **kwargs)
            return operation.target(*args, **kwargs)
        finally:
            self._operation = outer

    def _resolved(self, tree: Any) -> Any:
        def value(leaf: Any) -> Any:
            if isinstance(leaf, Body):
                return self._function(leaf)
            return self._values[leaf] if isinstance(leaf, Value) else leaf

        return mapped(tree, value)

    def _function(self, body: Body) -> Callable[..., Any]:
        def run(*args: Any) -> Any:
            self._values.update(zip(body.parameters, args, strict=True))
            return self.body(body)

        return run


def _mode(context: Context) -> Any:
    if context.kind == "set_grad_enabled":
        return torch.set_grad_enabled(context.arguments[0])
    device, dtype, is_enabled, is_caching = context.arguments
    return torch.autocast(device, dtype=dtype, enabled=is_enabled, cache_enabled=is_caching)
