"""Call a program with ExecuTorch before writing it: some kernels reject what torch accepts."""

from __future__ import annotations

import logging
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch.export import ExportedProgram

from fakexport._torch.pytree import tree_leaves, tree_unflatten
from fakexport.emulation.fake import is_fake
from fakexport.exporting.program import (
    derived_program,
    example_inputs_of,
    has_stand_in_inputs,
    stand_in_inputs,
    user_inputs,
    written_state,
)

from .description import Backend, partitioners
from .native_log import native_log

logger = logging.getLogger(__name__)

_FORWARD = "forward"


def trial_arguments(program: ExportedProgram) -> tuple[Any, ...]:
    """Return arguments for a trial call: the program's own example inputs, or zeros if it has none."""
    examples = None if has_stand_in_inputs(program) else example_inputs_of(program)
    leaves = [] if examples is None else tree_leaves(examples)
    tensors = [leaf for leaf in leaves if isinstance(leaf, torch.Tensor)]
    is_complete = len(leaves) == len(user_inputs(program))
    if not is_complete or any(is_fake(tensor) or tensor.is_meta for tensor in tensors):
        leaves = tree_leaves(stand_in_inputs(program, device="cpu"))
    return tuple(_own(leaf) for leaf in leaves)


def planned_sizes(content: bytes, indices: Sequence[int]) -> dict[int, tuple[int, ...]]:
    """Return the largest shape of each argument that a .pte file has memory for, by argument index."""
    from executorch.runtime import Runtime

    with native_log():
        known = Runtime.get().load_program(content).metadata(_FORWARD)
    return {index: tuple(known.input_tensor_meta(index).sizes()) for index in indices}


@dataclass(frozen=True)
class FailedCall:
    """The reason why the runtime rejected a call and, if a kernel failed, the index of the kernel call."""

    reason: str
    instruction: int | None


def call_failure(content: bytes, arguments: Sequence[Any]) -> FailedCall | None:
    """Load and call the program of a .pte file. Return why that failed, or None if it succeeded."""
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


def runs_in_torch(program: ExportedProgram, arguments: Sequence[Any]) -> bool:
    """Return whether torch runs the program on these arguments, and on copies of written buffers."""
    written = written_state(program)
    state, constants = (
        {name: _own(value) if name in written else value for name, value in held.items()}
        for held in (program.state_dict, program.constants)
    )
    own = derived_program(program, state_dict=state, constants=constants).module(check_guards=False)
    args, kwargs = tree_unflatten([_own(each) for each in arguments], program.call_spec.in_spec)
    try:
        with torch.no_grad():
            own(*args, **kwargs)
    except Exception as error:
        logger.debug("torch does not run the program on the arguments of the trial", exc_info=error)
        return False
    return True


def _own(argument: Any) -> Any:
    """Copy a tensor, because the program may write into its inputs."""
    if not isinstance(argument, torch.Tensor):
        return argument
    return argument.detach().clone(memory_format=torch.contiguous_format)


def edge_manager(program: ExportedProgram, backend: Backend, constant_methods: dict[str, Any]) -> Any:
    """Lower a bound program on the CPU to ExecuTorch's `EdgeProgramManager`.

    ExecuTorch's own verification of the graph is disabled. It stops at the first unsupported operator, and
    rejects some operators that the runtime has kernels for. The module `findings` checks the whole graph
    instead.
    """
    from executorch.exir import EdgeCompileConfig, to_edge_transform_and_lower

    return to_edge_transform_and_lower(
        program,
        partitioner=partitioners(backend),
        constant_methods=constant_methods,
        compile_config=EdgeCompileConfig(_check_ir_validity=False),
    )
