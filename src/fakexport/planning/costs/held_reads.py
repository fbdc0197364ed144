"""Compute the minimum number of bytes of weights, caches and inputs that any kernel must read."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any

import torch
from torch.fx import Node

from fakexport._torch.costs.operator_memory import tensors_in
from fakexport._torch.operators.operator_effects import effects_of
from fakexport._torch.operators.operator_registry import OpOverload
from fakexport._torch.pytree import tree_leaves
from fakexport._torch.tracing.symbolic_numbers import expression_of
from fakexport.planning.memory import Size

Sources = Mapping[int, Size]
"""Index of a weight, constant or input storage -> minimum number of bytes of the storage in a tensor."""

Value = tuple[Sources, ...]
"""The sources of each tensor of a node's value."""

_KEEPS = frozenset(
    f"aten::{name}" for name in ("clone", "_to_copy", "contiguous", "cat", "concat", "concatenate", "stack",
                                 "hstack", "vstack", "dropout", "repeat", "tile", "flip", "roll",
                                 "_unsafe_view", "index_copy", "slice_scatter", "repeat_interleave")
)  # fmt: skip
_NARROWS = frozenset(
    f"aten::{name}" for name in ("slice", "select", "narrow", "split", "split_with_sizes", "chunk", "unbind",
                                 "tensor_split", "diagonal", "unsafe_split", "unsafe_chunk")
)  # fmt: skip
# The result may omit many elements of the arguments, or have elements of a different size.
_LOSES = frozenset(
    f"aten::{name}" for name in ("as_strided", "view_as_complex", "view.dtype", "where", "masked_fill",
                                 "fill", "zero", "copy", "unfold")
)  # fmt: skip
_REDUCES = frozenset(
    f"aten::{name}" for name in ("sum", "mean", "amax", "amin", "softmax", "_softmax", "log_softmax", "var",
                                 "_log_softmax", "layer_norm", "native_layer_norm", "rms_norm", "group_norm",
                                 "native_group_norm", "batch_norm", "logsumexp", "std", "linalg_vector_norm")
)  # fmt: skip
_INSERTED = {"aten::index_copy": 3, "aten::index_copy_": 3, "aten::slice_scatter": 1}
# Grouped matrix products -> the number N of matrix arguments. Arguments: rows, N matrices, offsets.
_GROUPED = {
    "aten::_grouped_mm": 1,
    "aten::_scaled_grouped_mm": 1,
    "mxfp4::grouped_mm": 2,
    **{
        f"finegrained_fp8::{name}_matmul_grouped": 2
        for name in ("w8a8_block_dynamic_fp8", "w8a8_mx_dynamic_fp8", "w4a8_mx_dynamic_fp4")
    },
}
# Matrix products outside of torch that read all of their arguments.
_DENSE = frozenset(
    ("fbgemm::f8f8bf16_rowwise", *(f"finegrained_fp8::{kind}_matmul"
                                   for kind in ("w8a8_block_dynamic_fp8", "w8a8_block_static_fp8",
                                                "w8a8_tensor_dynamic_fp8", "w8a8_mx_dynamic_fp8",
                                                "w4a8_mx_dynamic_fp4")))
)  # fmt: skip
_MOST_STEPS_BACK = 200


class HeldReads:
    """Track weights, caches and inputs through operators whose results contain the same elements.

    The sources of a tensor are the storages that its elements come from, each with the minimum number of its
    bytes that must be read to read the tensor. The result of an operator that selects elements by
    data (`index`, `embedding`, `gather`) has no sources, because an element may be selected several times. A
    slice has the sources of the whole tensor, minus the bytes of the omitted elements.

    Args:
        expression: Converts a symbolic number into an int or an expression.
        itemsizes: Bytes per element of each storage.
    """

    def __init__(self, expression: Callable[[Any], Size], itemsizes: Sequence[int]) -> None:
        self._expression = expression
        self._itemsizes = itemsizes
        self._overwritten: dict[int, Size] = {}

    def passed_on(self, node: Node, given: Sequence[Sources]) -> Value:
        """Return the sources of each tensor in a node's result, given the sources of its arguments."""
        results = tensors_in(node.meta.get("val"))
        operator = node.target
        if not isinstance(operator, OpOverload):
            return tuple({} for _ in results)
        full, name = operator.name(), operator.name().partition(".")[0]
        if effects_of(operator).writes:
            self._write(node, name, given)
            return tuple(dict(given[0]) if given and len(results) == 1 else {} for _ in results)
        if name in ("aten::index", "aten::index_select") and given:
            return (self._chosen(node, given[0]),)
        if not any(given) or full in _LOSES or name in _LOSES or not _keeps(operator, name):
            return tuple({} for _ in results)
        merged = self.merged(given)
        if name in _NARROWS or name in _INSERTED:
            return tuple(self._part(node, name, merged, result) for result in results)
        return tuple(merged for _ in results)

    def read(self, node: Node, given: Sequence[Sources]) -> Sources:
        """Return the minimum bytes that a product or reduction reads, by storage."""
        name = node.target.name() if isinstance(node.target, OpOverload) else ""
        if len(given) > (matrices := _GROUPED.get(name, len(given))):
            chosen = [self._experts(node, given[i], i, matrices + 1) for i in range(1, matrices + 1)]
            return self._left(self.merged([given[0], *chosen]))
        if name.startswith("aten::") and "attention" in name and _may_skip_keys(node):
            return self._left(given[0])
        return self._left(self.merged(given)) if name.startswith("aten::") or name in _DENSE else {}

    def is_reduction(self, node: Node) -> bool:
        """Return whether an operator is a reduction, which reads all elements without multiplying."""
        return isinstance(node.target, OpOverload) and node.target.name().partition(".")[0] in _REDUCES

    def merged(self, given: Sequence[Sources]) -> Sources:
        """Merge the sources of several tensors: keep the largest known lower bound for each storage."""
        given = [sources for sources in given if sources]
        if len(given) < 2:
            return given[0] if given else {}
        found: dict[int, Size] = {}
        for sources in given:
            for storage, size in sources.items():
                known = found.get(storage)
                # Symbolic sizes cannot be compared, but either one is a valid minimum.
                is_more = known is None or (isinstance(size, int) and isinstance(known, int) and size > known)
                found[storage] = size if is_more else known
        return found

    def _left(self, sources: Sources) -> Sources:
        """Subtract the bytes that the program has already overwritten."""
        return {storage: size - self._overwritten.get(storage, 0) for storage, size in sources.items()}

    def _part(self, node: Node, name: str, sources: Sources, result: torch.Tensor) -> Sources:
        """Return the sources of the whole tensor, minus the bytes of omitted or replaced elements."""
        if name in _INSERTED:
            missing = tensors_in(_value(node, _INSERTED[name]))[0].numel()
        else:
            missing = tensors_in(_value(node, 0))[0].numel() - result.numel()
        lost = self._expression(missing)
        return {storage: size - lost * self._itemsizes[storage] for storage, size in sources.items()}

    def _write(self, node: Node, name: str, given: Sequence[Sources]) -> None:
        written = {index for index, _ in effects_of(node.target).writes}
        place = 0
        for index, argument in enumerate(node.args):
            for tensor in tensors_in(tree_values(argument)):
                if index in written and place < len(given):
                    inserted = tensors_in(_value(node, 3))[0] if name in _INSERTED else tensor
                    for storage in given[place]:
                        more = self._expression(inserted.numel()) * self._itemsizes[storage]
                        self._overwritten[storage] = self._overwritten.get(storage, 0) + more
                place += 1

    def _chosen(self, node: Node, sources: Sources) -> Sources:
        """Return the minimum bytes that `index` reads. Only the distinct indices from `topk` count."""
        indices = node.args[1] if isinstance(node.args[1], (list, tuple)) else node.args[2:3]
        if not sources or not indices or not isinstance(indices[0], Node) or any(indices[1:]):
            return {}
        is_first = isinstance(node.args[1], (list, tuple)) or node.args[1] == 0
        tensors = tensors_in(_value(node, 0))
        return _share(indices[0], sources, tensors) if is_first else {}

    def _experts(self, node: Node, sources: Sources, index: int, place: int) -> Sources:
        """Return the minimum bytes read from matrices `args[index]`. The group offsets are `args[place]`."""
        offsets = node.args[place] if len(node.args) > place else node.kwargs.get("offs")
        if not isinstance(offsets, Node):
            return sources
        return _share(offsets, sources, tensors_in(_value(node, index)), least=1)


def _share(source: Node, sources: Sources, tensors: Sequence[torch.Tensor], *, least: int = 0) -> Sources:
    """Return the bytes of the experts that `topk` selects, or of `least` experts if there is no `topk`."""
    count = tensors[0].shape[0] if tensors else 0
    if not isinstance(count, int) or not count:
        return {}
    chosen = _chosen_of(source, count) or least
    return {storage: size // count * chosen for storage, size in sources.items() if isinstance(size, int)}


def _chosen_of(source: Node, count: int) -> int:
    """Return how many of `count` experts the nearest preceding `topk` chooses, or 0 if there is none."""
    seen, waiting = {source}, [source]
    for node in waiting:
        if len(seen) > _MOST_STEPS_BACK:
            return 0
        if node.target is torch.ops.aten.topk.default:
            tensors = tensors_in(_value(node, 0))
            chosen = node.args[1]
            if tensors and tensors[0].shape[-1] == count and isinstance(chosen, int):
                return chosen
        waiting += [other for other in node.all_input_nodes if other not in seen]
        seen.update(node.all_input_nodes)
    return 0


def _keeps(operator: OpOverload, name: str) -> bool:
    is_view = effects_of(operator).aliased is not None
    return is_view or name in _KEEPS or name in _NARROWS or torch.Tag.pointwise in operator.tags


def _may_skip_keys(node: Node) -> bool:
    """Return whether attention may skip keys: it is causal, with different numbers of queries and keys."""
    query, key, *_ = (*tensors_in(_value(node, 0)), *tensors_in(_value(node, 1)))
    is_causal = node.kwargs.get("is_causal", False) or any(argument is True for argument in node.args[3:])
    if not is_causal:
        return False
    queries, keys = query.shape[-2], key.shape[-2]
    plain = [size if isinstance(size, int) else expression_of(size) for size in (queries, keys)]
    return bool(plain[0] != plain[1])


def _value(node: Node, index: int) -> Any:
    argument = node.args[index] if index < len(node.args) else None
    return tree_values(argument)


def tree_values(argument: Any) -> list[Any]:
    """Return the `val` metadata of each node in an argument."""
    return [leaf.meta.get("val") for leaf in tree_leaves(argument) if isinstance(leaf, Node)]


def sources_of(argument: Any, values: Mapping[Node, Value]) -> Iterator[Sources]:
    """Yield the sources of each tensor among a node's arguments."""
    for leaf in tree_leaves(argument):
        if isinstance(leaf, Node):
            tensors = tensors_in(leaf.meta.get("val"))
            known = values.get(leaf, ())
            yield from known if len(known) == len(tensors) else ({} for _ in tensors)
