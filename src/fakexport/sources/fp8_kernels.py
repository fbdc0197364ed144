"""The fp8 kernel that transformers fetches from the hub, as operators while a model is traced."""

from __future__ import annotations

import sys
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

from torch import nn

from fakexport._torch.fp8_products import (
    batched_matmul,
    grouped_matmul,
    matmul,
    on_a_gpu,
    register_fp8_products,
)
from fakexport._torch.patching import Patches

_MODULE = "transformers.integrations.finegrained_fp8"


@contextmanager
def fp8_kernels(module: nn.Module) -> Iterator[None]:
    """Enter a context in which fp8 layers of transformers need no kernel of the hub.

    DeepGEMM, which transformers prefers on Hopper GPUs where it is installed, is not taken: what it calls is
    not registered with torch, so no export could hold it.

    Args:
        module: The model; where it has no fp8 layers, nothing is done.
    """
    layers: Any = sys.modules.get(_MODULE)
    if layers is None or not any(
        isinstance(part, (layers.FP8Linear, layers.FP8Experts)) for part in module.modules()
    ):
        yield
        return
    register_fp8_products()
    kernel = layers.FineGrainedFP8(
        matmul=on_a_gpu(matmul),
        batched_matmul=on_a_gpu(batched_matmul),
        grouped_matmul=on_a_gpu(grouped_matmul),
    )
    with Patches(
        {
            (layers, "load_finegrained_fp8_kernel"): lambda: kernel,
            (layers, "is_deepgemm_loadable"): lambda: False,
        }
    ):
        yield
