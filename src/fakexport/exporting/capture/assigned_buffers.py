"""Turn assignments to buffers in `forward` into in-place copies, so that the program updates the buffers."""

from __future__ import annotations

import functools
from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

from torch import Tensor, nn

from fakexport._torch.emulation.fake_tensors import memory_of, storage_identity
from fakexport._torch.pytree import tree_map
from fakexport._torch.tracing.trace_corrections import buffer_assignments_ignored
from fakexport.models.sources import patched_forward


@contextmanager
def assigned_buffers_written(module: nn.Module) -> Iterator[None]:
    """Enter a context in which `module.forward` updates a buffer in place instead of replacing the tensor.

    Before `forward` returns, each tensor that it assigned to a buffer is copied into the original tensor. The
    results of `forward` are unchanged. Three kinds of buffers stay as `forward` assigned them: buffers whose
    new value has a different shape, dtype, device, layout or class; buffers that `forward` registers; and
    buffers that share memory with another buffer or parameter, because an assignment changes the value under
    one name only, but a copy would change the value under all names.
    """
    original: Callable[..., Any] = module.forward

    @functools.wraps(original)
    def forward(*args: Any, **kwargs: Any) -> Any:
        before = list(_buffers_of_one_name(module))
        result = original(*args, **kwargs)
        assigned = [
            (part, name, old, new)
            for part, name, old in before
            if (new := part._buffers.get(name)) is not None and new is not old and _is_alike(old, new)
        ]
        return _written(assigned, result) if assigned else result

    with patched_forward(module, forward), buffer_assignments_ignored():
        yield


def _buffers_of_one_name(module: nn.Module) -> Iterator[tuple[nn.Module, str, Tensor]]:
    if not any(part._buffers for part in module.modules()):
        return
    named = [
        *module.named_buffers(remove_duplicate=False),
        *module.named_parameters(remove_duplicate=False),
    ]
    names = Counter(storage_identity(tensor) for _, tensor in named if memory_of(tensor) is not None)
    for part in module.modules():
        for name, held in part._buffers.items():
            if held is not None and memory_of(held) is not None and names[storage_identity(held)] == 1:
                yield part, name, held


def _is_alike(old: Tensor, new: Tensor) -> bool:
    if not all(isinstance(size, int) for size in new.shape):
        return False  # Comparing a symbolic size would add a guard to the program.
    if type(old) is not type(new) or old.layout != new.layout:
        return False
    return (old.shape, old.dtype, old.device) == (new.shape, new.dtype, new.device)


def _written(assigned: list[tuple[nn.Module, str, Tensor, Tensor]], result: Any) -> Any:
    """Copy each assigned value into its buffer, and return the result of `forward`.

    Values and results that share memory with the old value of a buffer are cloned first.
    """
    kept = {storage_identity(old) for _, _, old, _ in assigned}

    def apart(value: Any) -> Any:
        if not isinstance(value, Tensor) or memory_of(value) is None:
            return value
        return value.clone() if storage_identity(value) in kept else value

    values = [apart(new) for _, _, _, new in assigned]
    result = tree_map(apart, result)
    for (part, name, old, _), value in zip(assigned, values, strict=True):
        old.copy_(value)
        part._buffers[name] = old
    return result
