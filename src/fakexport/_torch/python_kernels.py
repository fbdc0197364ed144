"""The kernels for fakes that torch has in Python, which an export runs and fake mode alone does not.

Some of them are next to a C++ kernel that needs its sizes as numbers: `aten.constant_pad_nd` of a size that
depends on data is such an operator. Seen on torch 2.11 to 2.13.

Source: `torch/export/_trace.py`, `torch/fx/experimental/proxy_tensor.py:_MakefxTracer`, which enable them.
"""

from __future__ import annotations

from contextlib import AbstractContextManager

from torch._dispatch.python import enable_python_dispatcher


def python_kernels() -> AbstractContextManager[None]:
    """Return a context in which operators on fakes return what they returns during an export."""
    guard: AbstractContextManager[None] = enable_python_dispatcher()
    return guard
