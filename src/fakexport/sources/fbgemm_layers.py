"""The layers that transformers makes for `fbgemm_fp8`, built and traced without the package of FBGEMM."""

from __future__ import annotations

import importlib
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import torch
from torch import nn

from fakexport._torch.fbgemm_products import quantize_on_a_gpu, register_fbgemm_products
from fakexport._torch.patching import Patches
from fakexport.sources.source_error import SourceError

_MODULE = "transformers.integrations.fbgemm_fp8"


@contextmanager
def fbgemm_layers(quantizer: Any) -> Iterator[None]:
    """Enter a context in which transformers' quantizer needs no package of FBGEMM.

    What it asks of the device is answered as before.

    Raises:
        SourceError: the target's FBGEMM has another fp8 dtype than the weights.
    """
    if not hasattr(quantizer, "FbgemmFp8HfQuantizer"):
        yield
        return
    if torch.version.hip is not None:
        raise SourceError(
            "FBGEMM quantizes to float8_e4m3fnuz on AMD GPUs, and the weights are in float8_e4m3fn"
        )
    layers = importlib.import_module(_MODULE)
    register_fbgemm_products()
    with Patches(
        {
            (quantizer, "is_fbgemm_gpu_available"): lambda: True,
            (layers, "get_quantize_fp8_per_row"): lambda: torch.ops.fbgemm.quantize_fp8_per_row,
        }
    ):
        yield


@contextmanager
def fbgemm_kernels(module: nn.Module) -> Iterator[None]:
    """Enter a context in which layers for `fbgemm_fp8` call FBGEMM's operators, and refuse a CPU."""
    layers: Any = sys.modules.get(_MODULE)
    if layers is None or not any(
        isinstance(part, (layers.FbgemmFp8Linear, layers.FbgemmFp8Llama4TextExperts))
        for part in module.modules()
    ):
        yield
        return
    with Patches(
        {
            (layers, "quantize_fp8_per_row"): quantize_on_a_gpu,
            # Remembered from when the module was imported, which may have been for another target.
            (layers, "_is_torch_xpu_available"): False,
        }
    ):
        yield
