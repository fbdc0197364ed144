"""The faults that fakexport knows, one file each. Free of torch: `fakexport explain` starts at once."""

from __future__ import annotations

from difflib import get_close_matches

from fakexport.rules import (
    attribute_changed,
    broken_tie,
    constant_from_draw,
    constant_from_parameter,
    constant_not_computed,
    construction_failed,
    data_dependent_branch,
    data_dependent_shape,
    data_dependent_value,
    draw_outside_torch,
    duplicate_entry,
    dynamic_dim_specialised,
    forward_failed,
    input_written,
    internal_fault,
    missing_fake_kernel,
    missing_weight,
    not_finite_weight,
    operator_in_training_mode,
    output_shares_memory,
    print_in_forward,
    tensor_is_plain_attribute,
    tensors_on_different_devices,
    unexpected_entry,
    unreplayable_read,
    weights_exceed_memory,
    wrong_weight_dtype,
    wrong_weight_shape,
)
from fakexport.rules.rule import FailsOn, Rule

__all__ = ["FailsOn", "Rule", "all_rules", "rule"]

# FE501 is reserved for burned_in_device.
_MODULES = (
    internal_fault,
    unreplayable_read,
    construction_failed,
    data_dependent_branch,
    forward_failed,
    data_dependent_value,
    data_dependent_shape,
    dynamic_dim_specialised,
    missing_fake_kernel,
    tensors_on_different_devices,
    weights_exceed_memory,
    constant_from_parameter,
    constant_from_draw,
    constant_not_computed,
    missing_weight,
    wrong_weight_shape,
    wrong_weight_dtype,
    unexpected_entry,
    broken_tie,
    not_finite_weight,
    duplicate_entry,
    operator_in_training_mode,
    input_written,
    attribute_changed,
    tensor_is_plain_attribute,
    output_shares_memory,
    print_in_forward,
    draw_outside_torch,
)


def all_rules() -> tuple[Rule, ...]:
    """Returns every rule, in the order of the codes."""
    return tuple(module.RULE for module in _MODULES)


def rule(code: str) -> Rule:
    """Returns the rule of a code or of a name.

    Args:
        code: `FE201`, `fe201`, `data_dependent_branch` or `data-dependent-branch`.
    Returns:
        The rule.
    Raises:
        ValueError: no such rule; the message, one line, names the nearest codes.

    Example:
        >>> rule("fe201").name
        'data_dependent_branch'
    """
    by_key = {key: known for known in all_rules() for key in (known.code.lower(), known.name)}
    wanted = code.strip().lower().replace("-", "_")
    if wanted in by_key:
        return by_key[wanted]
    nearest = dict.fromkeys(by_key[key] for key in get_close_matches(wanted, by_key, n=3, cutoff=0.0))
    listed = ", ".join(f"{known.code} ({known.name})" for known in nearest)
    raise ValueError(f"unknown rule {code!r}; the nearest are {listed}")
