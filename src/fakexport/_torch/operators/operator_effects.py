"""The effects of an operator: mutation and aliasing of arguments, random draws, and reads of data.

They are read from the operator's schema, which torch only exposes as the private attribute `_schema`. Seen on
torch 2.11 to 2.13.
"""

from __future__ import annotations

import functools
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch._ops import OpOverload

# Operators that read data and return a Python value, but do not have a tag that declares it.
_UNTAGGED_READS = frozenset({"aten::equal", "aten::is_nonzero", "aten::allclose", "aten::item"})
# Operators that return a view of their argument, although their schema does not declare it.
_UNDECLARED_VIEWS = frozenset({"aten::_unsafe_view", "prims::view_of", "_c10d_functional::wait_tensor"})
# Operators that update the running statistics in training, although their schema does not declare it.
_UNDECLARED_WRITES = {
    f"aten::{name}": ("running_mean", "running_var")
    for name in ("native_batch_norm", "cudnn_batch_norm", "miopen_batch_norm")
}
_LIFTS = frozenset({"aten::lift_fresh", "aten::lift_fresh_copy", "aten::lift"})
# Operators that overwrite every element of their first argument, regardless of the old value.
_OVERWRITES = frozenset(
    f"aten::{name}_" for name in ("fill", "zero", "normal", "uniform", "copy", "bernoulli", "random",
                                  "exponential", "cauchy", "log_normal", "geometric")
)  # fmt: skip

# Operators that only read the shape, dtype and device of their first argument. Overloads with a second tensor
# also read the data of that tensor.
_LIKE = frozenset(
    f"aten::{name}" for name in ("empty_like", "zeros_like", "ones_like", "full_like", "rand_like",
                                 "randn_like", "randint_like", "new_empty", "new_empty_strided",
                                 "new_zeros", "new_ones", "new_full")
)  # fmt: skip
# Operators that return uninitialized memory.
_UNINITIALISED = frozenset(
    f"aten::{name}" for name in ("empty", "empty_strided", "empty_permuted", "empty_like", "new_empty",
                                 "new_empty_strided")
)  # fmt: skip


@dataclass(frozen=True, slots=True)
class Effects:
    """Effects of one operator overload.

    Args:
        writes: The arguments that the operator mutates: the position in the schema, and the name.
        ignores_values: The operator only uses the shape, dtype and device of its tensors, not their data
            (`zeros_like`).
        is_lift: The operator's argument is a real tensor that Python has just created (`torch.tensor`,
            `torch.from_numpy`).
    """

    writes: tuple[tuple[int, str], ...] = ()
    aliased: tuple[int, str] | None = None  # The argument that its outputs alias, or None.
    is_random: bool = False  # It draws random numbers from a generator.
    reads_values: bool = False  # Its result is a data-dependent Python value, or has a data-dependent shape.
    ignores_values: bool = False
    leaves_uninitialised: bool = False  # Its result contains uninitialized memory.
    is_identity: bool = False  # Its output equals its argument, except for autograd.
    is_lift: bool = False
    overwrites: bool = False  # It writes every element of its first argument regardless of the old values.
    changes_geometry: bool = False  # It changes sizes or strides of its argument in place.
    moves_storage: bool = False  # It replaces the storage of its argument.
    returns_written: bool = False  # It returns an argument that it mutated, as in-place operators do.
    returns_tensors: bool = True  # False for queries such as `prim::device`.


def argument_at(place: tuple[int, str], args: Sequence[Any], kwargs: Mapping[str, Any]) -> Any:
    """Return the argument at a (position, name) of `Effects`, or None if the call does not pass it."""
    index, name = place
    return args[index] if index < len(args) else kwargs.get(name)


@functools.cache
def effects_of(operator: Any) -> Effects:
    """Return the effects of an operator overload. For a higher-order operator, no effects are reported."""
    if not isinstance(operator, OpOverload):
        return Effects()
    arguments = list(enumerate(operator._schema.arguments))
    undeclared = _UNDECLARED_WRITES.get(operator._schema.name, ())
    writes = tuple((i, a.name) for i, a in arguments if _is_write(a) or a.name in undeclared)
    read_aliases = [(i, a.name) for i, a in arguments if _is_alias(a)]
    returns_alias = any(map(_is_alias, operator._schema.returns))
    name = operator._schema.name
    if name in _UNDECLARED_VIEWS:
        read_aliases, returns_alias = [(0, arguments[0][1].name)], True
    return Effects(
        writes=writes,
        aliased=read_aliases[0] if returns_alias and read_aliases else None,
        is_random=torch.Tag.nondeterministic_seeded in operator.tags,
        reads_values=_reads_values(operator, name),
        ignores_values=name in _LIKE and sum("Tensor" in str(a.type) for _, a in arguments) == 1,
        leaves_uninitialised=name in _UNINITIALISED,
        is_identity=name in ("aten::detach", "aten::alias"),
        is_lift=name in _LIFTS,
        overwrites=name in _OVERWRITES,
        changes_geometry=torch.Tag.inplace_view in operator.tags,
        moves_storage=name == "aten::set_",
        returns_written=any(map(_is_write, operator._schema.returns)),
        returns_tensors=bool(writes) or any("Tensor" in str(r.type) for r in operator._schema.returns),
    )


def _is_write(argument: Any) -> bool:
    return argument.alias_info is not None and bool(argument.alias_info.is_write)


def _is_alias(argument: Any) -> bool:
    return argument.alias_info is not None and not argument.alias_info.is_write


def _reads_values(operator: OpOverload, name: str) -> bool:
    # `index` is data-dependent only with boolean masks, and callers must handle that case themselves.
    tags = (torch.Tag.data_dependent_output, torch.Tag.dynamic_output_shape)
    return name in _UNTAGGED_READS or (any(tag in operator.tags for tag in tags) and name != "aten::index")
