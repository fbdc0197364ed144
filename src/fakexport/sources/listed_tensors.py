"""`torch.tensor([a, b])` of fake tensors, in the runs of a model that read values."""

from __future__ import annotations

from typing import Any

import torch
from torch.overrides import TorchFunctionMode

from fakexport._torch.fake_tensors import FakeTensor
from fakexport._torch.real_execution import real_execution


class ListedTensors(TorchFunctionMode):
    """Reads fake tensors in a list for `torch.tensor` and `torch.as_tensor`, in a mode that is recorded.

    torch reads them past every mode, and there they have no data
    (`torch/csrc/utils/tensor_new.cpp:internal_new_from_data`).
    """

    def __torch_function__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        if func in (torch.tensor, torch.as_tensor) and args:
            args = (_readable(args[0]), *args[1:])
        return func(*args, **(kwargs or {}))


def _readable(data: Any) -> Any:
    """Return the data with real tensors in the place of fake ones: their dtypes decide that of the result."""
    if isinstance(data, (list, tuple)):
        return [_readable_item(item) for item in data]
    return data


def _readable_item(item: Any) -> Any:
    if not isinstance(item, FakeTensor) or item.dim():
        return _readable(item)
    value = item.item()
    with real_execution():
        return torch.tensor(value, dtype=item.dtype, device="cpu")
