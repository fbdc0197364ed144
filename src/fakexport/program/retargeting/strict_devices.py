"""Which operators take tensors of several devices on real hardware, and which do not.

Fake mode is kinder than a GPU: it lets a convolution take a weight from another device, a CPU tensor be
indexed by a CUDA index, and any operator take a CPU tensor without dimensions.

Source: `device_check` in torch's `native_functions.yaml`, which a test holds against the tables below;
`c10/core/impl/DeviceGuardImplInterface.h`; `aten/src/ATen/native/TensorAdvancedIndexing.cpp`.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import torch

from fakexport._torch.operator_schema import argument_names
from fakexport.program.node_names import target_name

MIXED = frozenset({
    "copy_", "copy", "_foreach_copy_", "_foreach_copy", "slice_scatter", "select_scatter",
    "diagonal_scatter", "as_strided_scatter", "expand_as", "view_as", "reshape_as", "is_same_size",
    "_pack_padded_sequence",  # Its lengths are on the CPU, wherever the sequence is.
})  # fmt: skip
"""They copy from one tensor into another, or read nothing but the shape of the second."""
INDEXED = frozenset({
    "index", "_unsafe_index", "index_put", "index_put_", "_unsafe_index_put", "_index_put_impl_",
    "_unsafe_masked_index", "_unsafe_masked_index_put_accumulate",
})  # fmt: skip
"""Their indices may be on the CPU, wherever the indexed tensor is; not the other way round."""
WITH_SCALARS = frozenset({
    "fill", "fill_", "masked_fill", "masked_fill_", "index_fill", "index_fill_", "floor_divide",
    "rsub", "where", "bernoulli_", "lerp", "lerp_", "mse_loss", "smooth_l1_loss", "dist", "xlogy",
    "__and__", "__iand__", "__or__", "__ior__", "__xor__", "__ixor__",
    "binary_cross_entropy", "binary_cross_entropy_with_logits", "clip", "clip_", "index_put",
})  # fmt: skip
"""They take a 0-d CPU tensor as a number, as those do that torch tags as pointwise."""
_POINTWISE_BUT_STRICT = frozenset({"equal"})


@dataclass(frozen=True)
class DeviceClash:
    """An operator that gets tensors which it cannot take together.

    Args:
        operator: `aten.index_select.default`.
        devices: Device by argument name, in schema order; a list has an index: `tensors[1]`.
    """

    operator: str
    devices: tuple[tuple[str, str], ...]

    @property
    def text(self) -> str:
        """`self on cuda:0, index on cpu`."""
        return ", ".join(f"{name} on {device}" for name, device in self.devices)


def device_clash(operator: Any, args: Sequence[Any], kwargs: Mapping[str, Any]) -> DeviceClash | None:
    """Say how a call of an aten operator breaks the rules of a real device, or None if it does not.

    An operator of another library has rules of its own, which its fake kernel may check.
    """
    tensors = list(_tensors(operator, args, kwargs))
    if len({tensor.device for _, tensor in tensors}) < 2 or operator.namespace != "aten":
        return None
    name = operator.overloadpacket.__name__
    if name in MIXED:
        return None
    bound = [(argument, tensor) for argument, tensor in tensors if not _is_free(operator, argument, tensor)]
    if len({tensor.device for _, tensor in bound}) < 2:
        return None
    return DeviceClash(
        target_name(operator), tuple((argument, str(tensor.device)) for argument, tensor in bound)
    )


def _is_free(operator: Any, argument: str, tensor: torch.Tensor) -> bool:
    """Return whether this argument may be on the CPU, wherever the others are."""
    if tensor.device.type != "cpu":
        return False
    name = operator.overloadpacket.__name__
    if name in INDEXED and argument.startswith("indices"):
        return True
    if tensor.dim() > 0 or name in _POINTWISE_BUT_STRICT:
        return False
    takes_scalars = name in WITH_SCALARS or name in INDEXED or name.startswith("_foreach_")
    return takes_scalars or torch.Tag.pointwise in operator.tags


def _tensors(
    operator: Any, args: Sequence[Any], kwargs: Mapping[str, Any]
) -> Iterator[tuple[str, torch.Tensor]]:
    named = (*zip(argument_names(operator), args, strict=False), *kwargs.items())
    for name, value in named:
        if isinstance(value, torch.Tensor):
            yield name, value
        elif isinstance(value, (list, tuple)):
            for index, item in enumerate(value):
                if isinstance(item, torch.Tensor):
                    yield f"{name}[{index}]", item
