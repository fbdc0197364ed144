"""Faster versions of export steps that rarely find anything.

Two steps visit each graph node: one searches for unbacked symbols even if the trace created none, the other
searches module stacks for strings to shorten. A third step rebuilds the whole graph for a few `no_grad`
regions (`no_grad_regions.py`), and a fourth takes a quarter of a millisecond for each parameter, to copy a
fake tensor. The faster versions return the same results. If one step uses stock torch's version, a static
trace of Llama-3.1-405B takes longer: by 13 percent for the first step, 6 for the second, 11 for the third and
4 for the fourth. Seen on torch 2.13. Each can be removed when the stock step is as fast.

Source: `torch/export/_trace.py:_replace_unbacked_bindings, _strip_root, _aot_export_non_strict`,
`torch/_export/utils.py:_fakify_params_buffers`, `torch/_subclasses/meta_utils.py:MetaConverter`,
`torch/fx/experimental/symbolic_shapes.py:_free_unbacked_symbols_with_path`.
"""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Callable
from typing import Any

import torch
from torch import nn
from torch._C._functorch import peek_interpreter_stack
from torch._subclasses.fake_tensor import in_kernel_invocation_manager
from torch.export import _trace
from torch.fx.experimental import symbolic_shapes
from torch.utils import _pytree

from fakexport._torch.emulation.fake_tensors import FakeTensor, FakeTensorMode
from fakexport._torch.patching import Patches, in_force

from . import no_grad_regions
from .new_fakes import NewFakes


def quick_passes() -> Patches:
    """Return a context in which `torch.export.export` takes less time per node, with the same result."""
    stock_symbols = in_force(symbolic_shapes, "_free_unbacked_symbols_with_path")
    stock_map = in_force(_pytree, "tree_map")

    def free_symbols(value: object, path: Any, *args: Any, **kwargs: Any) -> dict[Any, Any]:
        # Only pending symbols can be found.
        if type(value) is FakeTensor and kwargs.get("pending") == set():
            return {}
        found: dict[Any, Any] = stock_symbols(value, path, *args, **kwargs)
        return found

    shortened: dict[tuple[Any, ...], tuple[tuple[str, ...], ...]] = {}

    def tree_map(function: Callable[[Any], Any], tree: Any, *rests: Any, **kwargs: Any) -> Any:
        if function is _trace._strip_root and not rests and not kwargs and type(tree) is OrderedDict:
            pairs = tuple(tree.values())
            try:
                short = shortened.get(pairs)  # All nodes of a module call have equal stacks.
            except TypeError:  # An unhashable entry, so this is not a stack.
                short = None
            if short is None and _is_of_strings(pairs):
                short = shortened[pairs] = tuple(tuple(map(function, pair)) for pair in pairs)
            if short is not None:
                return OrderedDict(zip(tree, short, strict=True))
        return stock_map(function, tree, *rests, **kwargs)

    return Patches(
        {
            (symbolic_shapes, "_free_unbacked_symbols_with_path"): free_symbols,
            (_pytree, "tree_map"): tree_map,
            **no_grad_regions.replacements(),
            (_trace, "_fakify_params_buffers"): _quick_fakes(),
        }
    )


def _is_of_strings(pairs: tuple[Any, ...]) -> bool:
    return all(type(pair) is tuple and set(map(type, pair)) <= {str} for pair in pairs)


def _quick_fakes() -> Callable[..., Any]:
    """Return a faster function that creates the fakes of a module's parameters and buffers.

    For each distinct metadata, stock torch creates the first fake tensor, and this function copies it for
    the others. The memos of the fake mode end up the same as in stock torch.
    """
    stock = in_force(_trace, "_fakify_params_buffers")

    def fakify(mode: FakeTensorMode, module: nn.Module) -> Any:
        if mode.fake_tensor_converter.meta_converter.copy_data or peek_interpreter_stack() is not None:
            return stock(mode, module)
        named: dict[str, torch.Tensor] = dict(module.named_parameters(remove_duplicate=False))
        named |= dict(module.named_buffers(remove_duplicate=False))
        fakes = _Fakes(mode)
        return {name: fakes.of(value) for name, value in named.items()}

    return fakify


class _Fakes:
    def __init__(self, mode: FakeTensorMode) -> None:
        self._mode = mode
        self._converter = mode.fake_tensor_converter
        self._made: dict[int, FakeTensor] = {}
        self._fakes = NewFakes()
        self._known: dict[tuple[Any, ...], FakeTensor] = {}

    def of(self, value: torch.Tensor) -> FakeTensor:
        found = self._made.get(id(value))
        if found is None:
            found = self._made[id(value)] = self._fake(value)
        return found

    def _fake(self, value: torch.Tensor) -> FakeTensor:
        if not (type(value) is FakeTensor and self._is_plain(value)):
            return self._mode.from_tensor(value, static_shapes=True)
        key = value.shape, value.dtype, value.fake_device, value.requires_grad, vars(value).get("_is_param")
        like = self._known.get(key)
        if like is None:
            made = self._known[key] = self._mode.from_tensor(value, static_shapes=True)
            return made
        return self._copy(value, like)

    def _is_plain(self, value: FakeTensor) -> bool:
        """Return whether a copy is equivalent to the fake tensor that stock torch creates."""
        if value.layout is not torch.strided:
            return False  # Sparse tensors have no storage.
        remembered = self._converter.meta_converter
        storage = value.untyped_storage()
        return (
            all(type(size) is int for size in value.shape)
            and value.is_contiguous()
            and storage.nbytes() == value.numel() * value.dtype.itemsize > 0
            and value.is_leaf
            and value.grad is None
            and value.grad_dtype in (None, value.dtype)
            and not (value._is_view() or value.is_conj() or value.is_neg() or value.is_inference())
            and not getattr(value, "_is_buffer", False)
            and self._converter._get_memo(value) is None
            and remembered.describer.lookup_storage.get(storage) not in remembered.storage_memo
        )

    def _copy(self, value: FakeTensor, like: FakeTensor) -> FakeTensor:
        with torch.no_grad(), in_kernel_invocation_manager(self._mode):
            meta = torch.empty_strided(like.shape, like.stride(), dtype=like.dtype, device="meta")
        made = self._fakes.new(self._mode, meta, like.fake_device)
        if value.requires_grad:
            made.requires_grad_()
        if vars(value).get("_is_param"):
            made._is_param = True
        remembered = self._converter.meta_converter
        remembered.hit += 1
        storage = remembered.describer.get_storage_id(value.untyped_storage())
        remembered.storage_memo[storage] = made.untyped_storage()
        self._converter.set_tensor_memo(value, made)
        return made
