"""A program in ExecuTorch's dialect, partitioned for its backend."""

from __future__ import annotations

from typing import Any

from torch.export import ExportedProgram

from .backend import Backend, partitioners


def edge_manager(program: ExportedProgram, backend: Backend, constant_methods: dict[str, Any]) -> Any:
    """Return ExecuTorch's `EdgeProgramManager` for a bound program on the CPU.

    ExecuTorch's own verification of the graph is off: it stops at the first operator, and rejects some that
    the runtime has kernels for. `findings` checks the whole graph instead.

    Args:
        program: As returned by `functional_program`; unchanged.
        constant_methods: Further methods of the file, by name, and what they return.
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
