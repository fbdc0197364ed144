"""Ask ExecuTorch and its backends whether they take a program that has no weights."""

from __future__ import annotations

import logging
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from typing import Any

from torch.export import ExportedProgram
from torch.fx import Node

from ..coverage.covered import Covered, has_large_weights, on_the_cpu, replacements, with_example_values
from ..unsupported import fallbacks_of
from .compiling import WITHOUT_KERNEL, lowered, notes_of_call
from .description import Backend
from .findings import edge_name

_LIBRARIES: Mapping[str, tuple[str, str]] = {
    "xnnpack": ("XNNPACK", "executorch.backends.xnnpack"),
    "coreml": ("Core ML", "executorch.backends.apple.coreml"),
}


def cover_executorch(program: ExportedProgram, backend: Backend) -> Covered:
    """Lower a program for ExecuTorch without writing it, and call it once with zeros if it is small."""
    moved, rewrites = on_the_cpu(program, "ExecuTorch")
    rewrites += replacements(moved, WITHOUT_KERNEL)
    is_large = has_large_weights(moved)
    moved = with_example_values(moved)
    with _reasons(backend) as reasons:
        made = lowered(moved, backend)
    notes = made.notes
    if backend == "coreml":
        notes += ("the program was not called: ExecuTorch runs Core ML only on Apple devices",)
    elif is_large:
        notes += ("the program was not called, because its weights are large: a kernel may reject arguments",)
    else:
        notes += notes_of_call(made)
    if backend == "portable":
        return Covered(rewrites, notes=notes)
    outside = ((edge_name(node.target), node, _reason(node, backend, reasons)) for node in made.outside)
    return Covered(rewrites, fallbacks_of(outside), "ExecuTorch's portable kernels", notes)


def _reason(node: Node, backend: Backend, reasons: Mapping[str, str]) -> str:
    library, _ = _LIBRARIES[backend]
    if node.name in reasons:
        return f"{library}: {reasons[node.name]}"
    if backend == "xnnpack" and edge_name(node.target).split(".")[1] not in _operators_of_xnnpack():
        return f"{library} does not have this operator"
    return f"{library} does not take this call"


def _operators_of_xnnpack() -> set[str]:
    from executorch.backends.xnnpack.partition.config import ALL_PARTITIONER_CONFIGS

    return {config.target_name.partition(".")[0] for config in ALL_PARTITIONER_CONFIGS}


@contextmanager
def _reasons(backend: Backend) -> Iterator[Mapping[str, str]]:
    """Record why a partitioner leaves nodes out, by the name of the node. ExecuTorch only logs it."""
    found: dict[str, str] = {}

    class Recorder(logging.Handler):
        def emit(self, record: logging.LogRecord) -> None:
            said: Any = record.msg
            if isinstance(getattr(said, "node", None), Node):
                found[said.node.name] = str(said.reason).rstrip(".")

    if backend not in _LIBRARIES:
        yield found
        return
    logger, handler = logging.getLogger(_LIBRARIES[backend][1]), Recorder()
    before = logger.level, logger.propagate
    logger.addHandler(handler)
    logger.setLevel(logging.DEBUG)
    logger.propagate = False
    try:
        yield found
    finally:
        logger.removeHandler(handler)
        logger.setLevel(before[0])
        logger.propagate = before[1]
