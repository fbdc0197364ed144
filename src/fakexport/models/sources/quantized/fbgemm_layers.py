"""Build and trace the `fbgemm_fp8` layers of transformers without the FBGEMM package."""

from __future__ import annotations

import importlib
import sys
from typing import Any

import torch
from torch import nn

from fakexport._torch.kernels.fbgemm_products import quantize_on_a_gpu, register_fbgemm_products
from fakexport.models.sources.source_error import SourceError

_MODULE = "transformers.integrations.fbgemm_fp8"


def fbgemm_layers(quantizer: Any) -> dict[tuple[Any, str], Any]:
    """Return patches that let transformers' quantizer run without FBGEMM. Its device checks still apply.

    Raises:
        SourceError: on the target, FBGEMM uses an fp8 dtype that differs from the dtype of the weights.
    """
    if not hasattr(quantizer, "FbgemmFp8HfQuantizer"):
        return {}
    if torch.version.hip is not None:
        raise SourceError(
            "FBGEMM quantizes to float8_e4m3fnuz on AMD GPUs, but the weights are in float8_e4m3fn"
        )
    layers = importlib.import_module(_MODULE)
    register_fbgemm_products()
    return {
        (quantizer, "is_fbgemm_gpu_available"): lambda: True,
        (layers, "get_quantize_fp8_per_row"): lambda: torch.ops.fbgemm.quantize_fp8_per_row,
    }


def fbgemm_kernels(module: nn.Module) -> dict[tuple[Any, str], Any]:
    """Return patches that make `fbgemm_fp8` layers call FBGEMM's operators, which raise an error on a CPU."""
    layers: Any = sys.modules.get(_MODULE)
    if layers is None or not any(
        isinstance(part, (layers.FbgemmFp8Linear, layers.FbgemmFp8Llama4TextExperts))
        for part in module.modules()
    ):
        return {}
    return {
        (layers, "quantize_fp8_per_row"): quantize_on_a_gpu,
        # This value was cached when the module was imported, which may have been for a different target.
        (layers, "_is_torch_xpu_available"): False,
    }
