"""Who runs the program on the device."""

from __future__ import annotations

from typing import Any, Literal

__all__ = ["RUNTIME_NAMES", "Backend", "partitioners"]

Backend = Literal["portable", "xnnpack"]
"""ExecuTorch's own kernels for all of it, or XNNPACK for what it has and those kernels for the rest."""

# What ExecuTorch's runtime calls those that are no kernels of its own.
RUNTIME_NAMES: dict[Backend, str] = {"xnnpack": "XnnpackBackend"}


def partitioners(backend: Backend) -> list[Any]:
    """What picks the parts of a program that the backend runs."""
    if backend == "portable":
        return []
    from executorch.backends.xnnpack.partition.xnnpack_partitioner import XnnpackPartitioner

    return [XnnpackPartitioner()]
