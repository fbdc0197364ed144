"""What fake mode makes of the entries of its cache, in less time.

Fake mode remembers the sizes that an operator returned, and reserves memory for the next such result. With
symbolic sizes, reserving computes products by way of sympy: the most expensive part of an operator that was
seen before. Here the size of the memory is found out once for each entry. To write an entry down, stock torch
makes one more result, of which it asks nothing that depends on sizes; here that one is empty. Results, guards
and what is left out of the cache are those of stock torch. Seen on torch 2.13 and 2.15.

Source: `torch/_subclasses/fake_tensor.py:FakeTensorMode._get_output_tensor_from_cache_entry,
_get_output_info_for_cache_entry`, `torch/_subclasses/fake_impls.py:fast_detach`.
"""

from __future__ import annotations

from collections.abc import Callable
from contextlib import nullcontext
from dataclasses import dataclass
from typing import Any

import torch
from torch._dispatch.python import no_python_dispatcher
from torch._subclasses._fake_tensor_utils import _SymIntOutputStub
from torch._subclasses.fake_tensor import in_kernel_invocation_manager
from torch.fx.experimental import proxy_tensor

from .fake_tensors import FakeTensor, FakeTensorMode
from .new_fakes import NewFakes
from .patching import in_force
from .remembered_metadata import CountedAnswer, counting_tracers
from .remembered_sizes import remembered_count, state_of_symbols

_META = torch.device("meta")


def replacements() -> dict[tuple[Any, str], Callable[..., Any]]:
    """Return what `Patches` takes; with it, results of operators seen before are made in less time."""
    stock = in_force(FakeTensorMode, "_get_output_tensor_from_cache_entry")
    stock_info = in_force(FakeTensorMode, "_get_output_info_for_cache_entry")
    stock_detach = in_force(proxy_tensor, "fast_detach")
    fakes = NewFakes()
    known: dict[int, _Entry] = {}
    detached: dict[int, CountedAnswer] = {}
    is_writing = [False]

    def output(mode: FakeTensorMode, state: Any, entry: Any, key: Any, *called: Any) -> Any:
        args = called[-1]  # What was called comes before them, but on torch 2.15.
        if not _is_plain(entry.metadata):
            return stock(mode, state, entry, key, *called)
        if is_writing[0]:
            return fakes.new(mode, _empty(mode, entry.metadata), entry.metadata.device)
        found = known.get(id(entry)) or known.setdefault(id(entry), _Entry.of(entry))
        if found.is_symbolic and mode.shape_env is None:
            return stock(mode, state, entry, key, *called)
        return fakes.new(mode, found.meta(mode, key, args), entry.metadata.device)

    def info(
        mode: FakeTensorMode, state: Any, key: Any, func: Any, args: Any, kwargs: Any, result: Any
    ) -> Any:
        is_writing[0] = mode.shape_env is not None and mode.shape_env.unbacked_symint_counter == 0
        try:
            return stock_info(mode, state, key, func, args, kwargs, result)
        finally:
            is_writing[0] = False

    def detach(mode: FakeTensorMode, fake: FakeTensor, include_real: bool = False) -> Any:
        if (include_real and fake.real_tensor is not None) or fake.layout is not torch.strided:
            return stock_detach(mode, fake, include_real)
        with no_python_dispatcher(), in_kernel_invocation_manager(mode):
            tracers = counting_tracers()
            if tracers is None:
                meta = torch.ops.aten.detach.default(fake)
            elif (found := detached.get(len(tracers))) is None:
                found = CountedAnswer.of(tracers, lambda: torch.ops.aten.detach.default(fake))
                detached[len(tracers)] = found
                meta = found.answer
            else:  # The modes of the trace would do nothing but count the call.
                found.again(tracers)
                with torch._C.DisableTorchFunction():
                    meta = fake.detach()
        return fakes.new(mode, meta, fake.fake_device)

    return {
        (FakeTensorMode, "_get_output_tensor_from_cache_entry"): output,
        (FakeTensorMode, "_get_output_info_for_cache_entry"): info,
        (proxy_tensor, "fast_detach"): detach,
    }


@dataclass
class _Entry:
    """An entry of the cache.

    Args:
        entry: It, which must stay alive.
        is_view: Whether the result looks at the memory of an argument.
        is_symbolic: Whether any of its sizes, strides or its offset is.
        count: How many elements its memory has, where that is symbolic, and while `state` holds.
        state: What was known of the symbols then.
    """

    entry: Any
    is_view: bool
    is_symbolic: bool
    count: torch.SymInt | None = None
    state: tuple[Any, ...] | None = None

    @classmethod
    def of(cls, entry: Any) -> _Entry:
        metadata = entry.metadata
        numbers = (*metadata.shape, *metadata.stride, metadata.storage_offset)
        is_symbolic = any(isinstance(number, _SymIntOutputStub) for number in numbers)
        return cls(entry, entry.view_idx is not None, is_symbolic)

    def meta(self, mode: FakeTensorMode, key: Any, args: Any) -> torch.Tensor:
        """Return the sizes, strides and memory of one more result."""
        metadata, environment = self.entry.metadata, mode.shape_env
        shape, stride, offset = metadata.shape, metadata.stride, metadata.storage_offset
        if self.is_symbolic:
            shape = tuple(_number(size, key, environment) for size in shape)
            stride = tuple(_number(step, key, environment) for step in stride)
            offset = _number(offset, key, environment)
        # Entering it is not for free, and memory of a size that is a number asks nothing.
        is_asking = self.is_symbolic or self.is_view
        unguarded = environment.suppress_guards() if environment and is_asking else nullcontext()
        with in_kernel_invocation_manager(mode), unguarded:
            if self.is_view:
                meta = _reserved((0,), (1,), metadata)
                return meta.set_(args[self.entry.view_idx].untyped_storage(), offset, shape, stride)
            if self.count is None or self.state != state_of_symbols(self.count):
                meta = _reserved(shape, stride, metadata)
                if not self.is_symbolic or metadata.requires_grad:
                    return meta
                self._remember(meta)
            # The first one too: two results share a number of bytes either in each of many blocks or in none.
            if self.count is None:
                return meta
            base = _reserved((self.count,), (1,), metadata)
            with torch.no_grad():
                return torch.as_strided(base, shape, stride, 0)

    def _remember(self, meta: torch.Tensor) -> None:
        self.count = remembered_count(meta.untyped_storage().nbytes(), meta.dtype)
        self.state = None if self.count is None else state_of_symbols(self.count)


def _is_plain(metadata: Any) -> bool:
    return (
        metadata is not None
        and metadata.layout is torch.strided
        and not (metadata.is_conj or metadata.is_neg)
    )


def _number(value: Any, key: Any, environment: Any) -> Any:
    return value.extract(key, environment) if isinstance(value, _SymIntOutputStub) else value


def _reserved(shape: Any, stride: Any, metadata: Any) -> torch.Tensor:
    return torch.empty_strided(
        shape, stride, dtype=metadata.dtype, device=_META, requires_grad=metadata.requires_grad
    )


def _empty(mode: FakeTensorMode, metadata: Any) -> torch.Tensor:
    with in_kernel_invocation_manager(mode):
        return _reserved((0,), (1,), metadata)
