"""Convert tensors to ONNX Runtime values and back."""

from __future__ import annotations

from typing import Any

import torch

from ..artifact import DeployError

_TYPES = {
    torch.float32: "FLOAT",
    torch.float64: "DOUBLE",
    torch.float16: "FLOAT16",
    torch.bfloat16: "BFLOAT16",
    torch.float8_e4m3fn: "FLOAT8E4M3FN",
    torch.float8_e4m3fnuz: "FLOAT8E4M3FNUZ",
    torch.float8_e5m2: "FLOAT8E5M2",
    torch.float8_e5m2fnuz: "FLOAT8E5M2FNUZ",
    torch.bool: "BOOL",
    torch.uint8: "UINT8",
    torch.uint16: "UINT16",
    torch.uint32: "UINT32",
    torch.uint64: "UINT64",
    torch.int8: "INT8",
    torch.int16: "INT16",
    torch.int32: "INT32",
    torch.int64: "INT64",
    # As pairs of real numbers.
    torch.complex64: "FLOAT",
    torch.complex128: "DOUBLE",
}
# What numpy has no dtype for goes as integers of the same width.
_BITS = {
    torch.bfloat16: torch.uint16,
    torch.float8_e4m3fn: torch.uint8,
    torch.float8_e4m3fnuz: torch.uint8,
    torch.float8_e5m2: torch.uint8,
    torch.float8_e5m2fnuz: torch.uint8,
}


def onnx_type(dtype: torch.dtype) -> int:
    """Return ONNX's number for a dtype.

    Raises:
        DeployError: ONNX does not support it.
    """
    import onnx

    if dtype not in _TYPES:
        raise DeployError(f"ONNX does not support the dtype {str(dtype).removeprefix('torch.')}")
    number: int = onnx.TensorProto.DataType.Value(_TYPES[dtype])
    return number


def to_ort(tensor: torch.Tensor) -> Any:
    """Return the tensor as an `OrtValue`: the same memory, where it is on the CPU and row-major."""
    from onnxruntime import OrtValue

    plain = tensor.detach().to("cpu").contiguous()
    if plain.is_complex():
        plain = torch.view_as_real(plain)
    if plain.dtype not in _BITS:
        return OrtValue.ortvalue_from_numpy(plain.numpy())
    bits = plain.view(_BITS[plain.dtype]).numpy()
    return OrtValue.ortvalue_from_numpy_with_onnx_type(bits, onnx_type(plain.dtype))


def from_ort(value: Any) -> torch.Tensor:
    """Return the value as a tensor of its own."""
    if "float8" in value.data_type() or "bfloat16" in value.data_type():
        return torch.utils.dlpack.from_dlpack(value).clone()
    return torch.from_numpy(value.numpy())
