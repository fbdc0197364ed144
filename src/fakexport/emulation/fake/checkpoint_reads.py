"""Return fake tensors when a constructor loads the weights of a checkpoint.

Only the headers of the checkpoint's files are read.
"""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

import torch

from fakexport._torch.emulation.fake_tensors import FakeTensorMode, active_fake_mode, real_to_fake
from fakexport._torch.operators.real_execution import real_execution
from fakexport.emulation.history import withhold_value
from fakexport.error import InvalidType

_NAME = "safe_open"
DTYPES = {
    "BOOL": torch.bool, "U8": torch.uint8, "I8": torch.int8, "U16": torch.uint16, "I16": torch.int16,
    "U32": torch.uint32, "I32": torch.int32, "U64": torch.uint64, "I64": torch.int64,
    "F8_E5M2": torch.float8_e5m2, "F8_E4M3": torch.float8_e4m3fn, "F8_E8M0": torch.float8_e8m0fnu,
    "F8_E5M2FNUZ": torch.float8_e5m2fnuz, "F8_E4M3FNUZ": torch.float8_e4m3fnuz,
    "F16": torch.float16, "BF16": torch.bfloat16, "F32": torch.float32, "F64": torch.float64,
    "C64": torch.complex64,
}  # fmt: skip
"""Dtype name in the safetensors format -> torch dtype. Dtypes smaller than a byte are not supported."""


@contextmanager
def headers_alone() -> Iterator[None]:
    """Enter a context in which `safetensors.safe_open` reads only headers if a fake mode is active.

    `transformers`, `safetensors.torch.load_file`, diffusers and timm all read files with this function.
    Threads without a fake mode still read weights. On exit, the original function is restored, also in
    modules that were imported within the block.
    """
    try:
        import safetensors
    except ImportError:
        yield
        return
    real = safetensors.safe_open
    stand_in = _opener(real)
    _exchange(real, stand_in)
    try:
        yield
    finally:
        _exchange(stand_in, real)


def _opener(real: Callable[..., Any]) -> Callable[..., Any]:
    def safe_open(filename: Any, framework: str = "pt", device: Any = "cpu", **options: Any) -> Any:
        mode = active_fake_mode()
        if mode is None or framework not in ("pt", "torch", "pytorch"):
            return real(filename, framework, device, **options)
        # NumPy is used because safetensors would map the whole file for torch.
        return _Headers(real(filename, "np"), mode, torch.empty(0, device=device).device)

    return safe_open


def _exchange(old: object, new: object) -> None:
    for module in sys.modules.copy().values():
        if getattr(module, "__dict__", {}).get(_NAME) is old:
            setattr(module, _NAME, new)


class _Headers:
    """An open safetensors file that returns fake tensors. It replaces the object returned by `safe_open`."""

    def __init__(self, file: Any, mode: FakeTensorMode, device: torch.device) -> None:
        self._file, self._mode, self._device = file, mode, device
        self.keys, self.offset_keys, self.metadata = file.keys, file.offset_keys, file.metadata

    def __enter__(self) -> _Headers:
        return self

    def __exit__(self, *error: object) -> None:
        self._file.__exit__(*error)

    def get_tensor(self, name: str) -> torch.Tensor:
        return self.get_slice(name)[...]

    def get_tensors(self) -> dict[str, torch.Tensor]:
        return {name: self.get_tensor(name) for name in self.offset_keys()}

    def get_slice(self, name: str) -> _Slice:
        return _Slice(self._file.get_slice(name), name, self._mode, self._device)


class _Slice:
    """A tensor of a safetensors file, as described in the header. Indexing returns a fake tensor."""

    def __init__(self, entry: Any, name: str, mode: FakeTensorMode, device: torch.device) -> None:
        self.get_shape, self.get_dtype = entry.get_shape, entry.get_dtype
        self._name, self._mode, self._device = name, mode, device

    def __getitem__(self, index: Any) -> torch.Tensor:
        dtype = DTYPES.get(self.get_dtype())
        if dtype is None:
            raise InvalidType(f"{self._name} has unsupported dtype {self.get_dtype()}")
        with real_execution():
            meta = torch.empty(self.get_shape(), dtype=dtype, device="meta")
        whole = real_to_fake(self._mode, meta, self._device)
        withhold_value(whole, f"{self._name} of a checkpoint, whose data was not read")
        return whole if index is Ellipsis else whole[index]
