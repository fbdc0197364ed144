"""Determine which operators accept tensors on different devices when they run on real hardware.

Fake mode is more permissive than a GPU. For example, it accepts a convolution with a weight on another
device, a CPU tensor with a CUDA index, and a 0-d CPU tensor for any operator.

Source: `device_check` in torch's `native_functions.yaml`, which a test compares with the tables below;
`c10/core/impl/DeviceGuardImplInterface.h`; `aten/src/ATen/native/TensorAdvancedIndexing.cpp`.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import Any

import torch

from fakexport._torch.operators.operator_schema import argument_names
from fakexport.exporting.program.node_names import target_name

MIXED = frozenset({
    "copy_", "copy", "_foreach_copy_", "_foreach_copy", "slice_scatter", "select_scatter",
    "diagonal_scatter", "as_strided_scatter", "expand_as", "view_as", "reshape_as", "is_same_size",
    "_pack_padded_sequence",  # The lengths are always on the CPU.
})  # fmt: skip
"""Operators that copy from one tensor to another, or read only the shape of the second tensor."""
INDEXED = frozenset({
    "index", "_unsafe_index", "index_put", "index_put_", "_unsafe_index_put", "_index_put_impl_",
    "_unsafe_masked_index", "_unsafe_masked_index_put_accumulate",
})  # fmt: skip
"""Operators whose indices may be on the CPU even if the tensor is not. A CPU tensor needs CPU indices."""
WITH_SCALARS = frozenset({
    "fill", "fill_", "masked_fill", "masked_fill_", "index_fill", "index_fill_", "floor_divide",
    "rsub", "where", "bernoulli_", "lerp", "lerp_", "mse_loss", "smooth_l1_loss", "dist", "xlogy",
    "__and__", "__iand__", "__or__", "__ior__", "__xor__", "__ixor__",
    "binary_cross_entropy", "binary_cross_entropy_with_logits", "clip", "clip_", "index_put",
})  # fmt: skip
"""Operators that use a 0-d CPU tensor as a number, as do operators that torch tags as pointwise."""
_POINTWISE_BUT_STRICT = frozenset({"equal"})


def device_clash(operator: Any, args: Sequence[Any], kwargs: Mapping[str, Any]) -> str | None:
    """Check a call of an aten operator with the device rules of real hardware.

    Operators of other libraries are not checked here. Their fake kernels may check devices themselves.

    Returns:
        The violation as a clause, such as `aten.index_select.default gets self on cuda:0, index on cpu`, or
        None.
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
    places = ", ".join(f"{argument} on {tensor.device}" for argument, tensor in bound)
    return f"{target_name(operator)} gets {places}"


def _is_free(operator: Any, argument: str, tensor: torch.Tensor) -> bool:
    """Return whether this argument may be on the CPU while the other arguments are on an accelerator."""
    if tensor.device.type != "cpu":
        return False
    name = operator.overloadpacket.__name__
    if name in INDEXED and argument.startswith("indices"):
        return True
    if tensor.dim() > 0 or name in _POINTWISE_BUT_STRICT or argument == "mask":
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
