"""Call a program with ExecuTorch before it is written: some kernels reject what torch's kernels accept."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import fx, nn
from torch.export import ExportedProgram
from torch.export.graph_signature import ConstantArgument
from torch.fx import Node

from fakexport._torch.pytree import tree_leaves, tree_map
from fakexport._torch.symbolic_numbers import expression_of, hint_of
from fakexport.diagnostics import Diagnostic
from fakexport.fake import is_fake
from fakexport.program import example_inputs_of, has_stand_in_inputs, target_name, user_inputs

from .description import Backend, partitioners
from .findings import unrun_operators
from .native_log import native_log

_FORWARD = "forward"


def trial_arguments(program: ExportedProgram) -> tuple[tuple[Any, ...], bool]:
    """Return arguments for a call of the program, and whether they are the program's own."""
    examples = None if has_stand_in_inputs(program) else example_inputs_of(program)
    leaves = [] if examples is None else tree_leaves(examples)
    given = user_inputs(program)
    tensors = [leaf for leaf in leaves if isinstance(leaf, torch.Tensor)]
    if len(leaves) == len(given) and not any(is_fake(tensor) or tensor.is_meta for tensor in tensors):
        return tuple(_own(leaf) for leaf in leaves), True
    zeros = (
        each.value if isinstance(each, ConstantArgument) else _zeros(node.meta["val"], program)
        for each, node in given
    )
    return tuple(zeros), False


def planned_sizes(content: bytes, indices: Sequence[int]) -> dict[int, tuple[int, ...]]:
    """Return the largest shapes that a .pte file has room for, for those arguments, which are tensors."""
    from executorch.runtime import Runtime

    with native_log():
        known = Runtime.get().load_program(content).metadata(_FORWARD)
    return {index: tuple(known.input_tensor_meta(index).sizes()) for index in indices}


@dataclass(frozen=True)
class FailedCall:
    """Why the runtime refused a call, and the index of the kernel call that failed, if one did."""

    reason: str
    instruction: int | None


def call_failure(content: bytes, arguments: Sequence[Any]) -> FailedCall | None:
    """Return why ExecuTorch does not load and call the program of a .pte file; None if it does."""
    from executorch.runtime import Runtime

    with native_log() as log:
        try:
            method = Runtime.get().load_program(content).load_method(_FORWARD)
            method.execute([_own(argument) for argument in arguments])
        except RuntimeError as error:
            failure = str(error)
        else:
            return None
    return FailedCall("; ".join(log.reasons) or failure, log.failed_instruction)


def refused_operators(
    program: ExportedProgram, backend: Backend, arguments: Sequence[Any]
) -> tuple[Diagnostic, ...]:
    """Return a finding for each operator whose kernel rejects its arguments in a call of the program.

    Each is compiled and called alone, on its arguments when torch runs the program, so that one that fails
    does not hide the others.
    """
    module = edge_manager(program, backend, {}).exported_program().module()
    calls = _Calls(module)
    calls.run(*(_own(argument) for argument in arguments if isinstance(argument, torch.Tensor)))
    return unrun_operators(calls.failed, calls.why)


class _Calls(fx.Interpreter):
    """Runs a lowered program with torch, and each operator of it with ExecuTorch as well."""

    def __init__(self, module: fx.GraphModule) -> None:
        super().__init__(module)
        self.failed: dict[str, list[Node]] = {}
        self.why: dict[str, str] = {}
        self._seen: dict[str, str | None] = {}

    def run_node(self, n: Node) -> Any:
        from executorch.exir.dialects.edge._ops import EdgeOpOverload

        if n.op == "call_function" and isinstance(n.target, EdgeOpOverload):
            args, kwargs = self.fetch_args_kwargs_from_env(n)
            key = f"{n.target} {tree_map(_kind, (args, kwargs))}"
            if key not in self._seen:
                self._seen[key] = _refusal(n.target, args, kwargs)
            if (said := self._seen[key]) is not None:
                name = target_name(n.target._op)
                self.failed.setdefault(name, []).append(n)
                self.why.setdefault(name, said)
        return super().run_node(n)


def _refusal(target: Any, args: Any, kwargs: Any) -> str | None:
    """Return ExecuTorch's message for a call of one operator; None if it runs, or has no kernel."""
    if target.namespace == "executorch_prim":
        return None
    tensors = [leaf for leaf in tree_leaves((args, kwargs)) if isinstance(leaf, torch.Tensor)]
    call = torch.export.export(_OneCall(target._op, args, kwargs), tuple(tensors))
    content = edge_manager(call, "portable", {}).to_executorch().buffer
    failed = call_failure(content, tensors)
    return None if failed is None else failed.reason


class _OneCall(nn.Module):
    """A call of an operator, of its tensors."""

    def __init__(self, operator: Any, args: Any, kwargs: Any) -> None:
        super().__init__()
        self._operator, self._arguments = operator, (args, kwargs)

    def forward(self, *tensors: torch.Tensor) -> Any:
        given: Iterator[torch.Tensor] = iter(tensors)
        args, kwargs = tree_map(
            lambda leaf: next(given) if isinstance(leaf, torch.Tensor) else leaf, self._arguments
        )
        return self._operator(*args, **kwargs)


def _kind(leaf: Any) -> str:
    if not isinstance(leaf, torch.Tensor):
        return repr(leaf)
    return f"{leaf.dtype} {leaf.dim()} {leaf.dim_order()}"


def _own(argument: Any) -> Any:
    """Return a copy: a program may write into its inputs."""
    if not isinstance(argument, torch.Tensor):
        return argument
    return argument.detach().clone(memory_format=torch.contiguous_format)


def _zeros(value: torch.Tensor, program: ExportedProgram) -> torch.Tensor:
    return torch.zeros([_size(size, program) for size in value.shape], dtype=value.dtype)


def _size(size: int | torch.SymInt, program: ExportedProgram) -> int:
    """Return the example's size, or the smallest that its symbols allow."""
    if isinstance(size, int):
        return size
    if (hint := hint_of(size)) is not None:
        return int(hint)
    expression = expression_of(size)
    least = {symbol: max(2, program.range_constraints[symbol].lower) for symbol in expression.free_symbols}
    return int(expression.subs(least))


def edge_manager(program: ExportedProgram, backend: Backend, constant_methods: dict[str, Any]) -> Any:
    """Return ExecuTorch's `EdgeProgramManager` for a bound program on the CPU.

    ExecuTorch's own verification of the graph is off: it stops at the first operator, and rejects some that
    the runtime has kernels for. `findings` checks the whole graph instead.

    Raises:
        Exception: whatever torch's decompositions and ExecuTorch's passes raise.
    """
    from executorch.exir import EdgeCompileConfig, to_edge_transform_and_lower

    return to_edge_transform_and_lower(
        program,
        partitioner=partitioners(backend),
        constant_methods=constant_methods,
        compile_config=EdgeCompileConfig(_check_ir_validity=False),
    )
