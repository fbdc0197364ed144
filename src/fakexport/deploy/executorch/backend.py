"""Backends that run the program on the device."""

from __future__ import annotations

from typing import Any, Literal

Backend = Literal["portable", "xnnpack"]
"ExecuTorch's own kernels only, or XNNPACK for what it supports and those kernels for the rest."

# What ExecuTorch's runtime calls those that are no kernels of its own.
RUNTIME_NAMES: dict[Backend, str] = {"xnnpack": "XnnpackBackend"}


def partitioners(backend: Backend) -> list[Any]:
    """Return the partitioners for the parts of a program that the backend runs.

    XNNPACK's own configs take a product of matrices together with everything that `nn.Linear` did around it.
    If that computes the weight (of a quantized or parametrized layer), XNNPACK would misinterpret memory.
    Here a product is partitioned if its own operands allow it. A plain linear layer is an operator of its
    own, and has its own config.
    """
    if backend == "portable":
        return []
    from executorch.backends.xnnpack.partition.config import ALL_PARTITIONER_CONFIGS
    from executorch.backends.xnnpack.partition.config.gemm_configs import AddmmConfig, GEMMConfig, MMConfig
    from executorch.backends.xnnpack.partition.xnnpack_partitioner import XnnpackPartitioner

    own = {
        config: type(config.__name__, (config,), {"get_deps": GEMMConfig.get_deps})
        for config in (AddmmConfig, MMConfig)
    }
    return [XnnpackPartitioner(configs=[own.get(config, config) for config in ALL_PARTITIONER_CONFIGS])]
