"""Operators with the inputs of PyTorch's own tests, as fake tensors on a device."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any

import torch
from torch._subclasses.meta_utils import MetaConverter
from torch.testing._internal.common_methods_invocations import op_db
from torch.testing._internal.opinfo.core import OpInfo, SampleInput
from torch.utils._pytree import tree_flatten, tree_leaves, tree_map

from fakexport._torch.emulation.fake_tensors import FakeTensor, FakeTensorMode
from fakexport._torch.operators.real_execution import real_execution

__all__ = ["Call", "dtypes_of", "is_placed", "operators", "samples_of", "stand_in"]

Call = tuple[tuple[Any, ...], dict[str, Any]]
"""Positional and keyword arguments of one call."""


def operators(names: Sequence[str] = ()) -> list[OpInfo]:
    """Return all operators of PyTorch's database, or those with names such as `nn.functional.conv2d`."""
    known = {op.full_name: op for op in op_db}
    unknown = [name for name in names if name not in known]
    if unknown:
        raise ValueError(f"not in torch's operator database: {', '.join(unknown)}")
    return [known[name] for name in names] if names else list(known.values())


def dtypes_of(op: OpInfo, wanted: str, needs_grad: bool) -> list[torch.dtype]:
    """Return the dtypes that the operator supports on the CPU; if `wanted` is not `all`, only that dtype."""
    supported = op.supported_dtypes("cpu")
    if needs_grad:
        supported = supported & op.supported_backward_dtypes("cpu") if op.supports_autograd else set()
    return sorted((d for d in supported if wanted in ("all", _name(d))), key=str)


def samples_of(op: OpInfo, dtype: torch.dtype, needs_grad: bool, count: str) -> Iterator[Call]:
    """Yield the sample inputs as real CPU tensors, without samples that look the same as fake tensors."""
    seen = set()
    for sample in op.sample_inputs("cpu", dtype, requires_grad=needs_grad):
        call = _call(sample)
        key = _description(call)
        if key not in seen:
            seen.add(key)
            yield call
        if count == "first":
            return


def stand_in(call: Call, mode: FakeTensorMode, wanted: torch.device) -> Call:
    """Return the call with fake tensors instead of real ones, and `wanted` instead of device arguments."""
    to_meta = MetaConverter()

    def on_device(make_meta: Any, device: object) -> FakeTensor:
        with real_execution():
            return FakeTensor(mode, make_meta(), wanted)

    def replaced(leaf: Any) -> Any:
        if isinstance(leaf, torch.Tensor):
            fake = to_meta(leaf, callback=on_device)
            fake.fake_device = wanted  # A fake view is on the device of its storage.
            return fake
        if isinstance(leaf, torch.device):
            return wanted
        return str(wanted) if _is_cpu(leaf) else leaf

    return tree_map(replaced, call)  # type: ignore[no-any-return]


def is_placed(call: Call) -> bool:
    """Return whether the call has a tensor or a device, which determines the device of the outputs."""
    return any(isinstance(leaf, torch.Tensor | torch.device) or _is_cpu(leaf) for leaf in tree_leaves(call))


def _is_cpu(leaf: Any) -> bool:
    return isinstance(leaf, str) and leaf == "cpu"


def _call(sample: SampleInput) -> Call:
    return (sample.input, *sample.args), dict(sample.kwargs)


def _description(call: Call) -> tuple[Any, ...]:
    leaves, structure = tree_flatten(call)
    return (str(structure), *map(_leaf_description, leaves))


def _leaf_description(leaf: Any) -> Any:
    if not isinstance(leaf, torch.Tensor):
        return repr(leaf)
    placement = (leaf.stride(), leaf.storage_offset()) if leaf.layout is torch.strided else ()
    flags = (leaf.requires_grad, leaf.is_conj(), leaf.is_neg())
    return (tuple(leaf.shape), leaf.dtype, leaf.layout, placement, flags)


def _name(dtype: torch.dtype) -> str:
    return str(dtype).removeprefix("torch.")
