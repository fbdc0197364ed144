"""Every fault that fakexport diagnoses, one file each. Does not import torch: `fakexport explain` is fast."""

from __future__ import annotations

from difflib import get_close_matches

from fakexport.rules import (
    absent_device,
    attribute_changed,
    broken_tie,
    constant_from_draw,
    constant_from_parameter,
    constant_not_computed,
    construction_failed,
    data_dependent_branch,
    data_dependent_loop,
    data_dependent_shape,
    data_dependent_value,
    dims_must_be_equal,
    draw_outside_torch,
    dtype_mismatch,
    duplicate_entry,
    dynamic_dim_specialized,
    executorch_cannot_run,
    fake_kernel_disagrees,
    forward_failed,
    hard_coded_device,
    input_not_derived,
    input_written,
    internal_fault,
    missing_device_kernel,
    missing_fake_class,
    missing_fake_kernel,
    missing_weight,
    module_moved,
    not_compilable,
    not_finite_weight,
    onnx_cannot_express,
    operator_in_training_mode,
    output_shares_memory,
    print_in_forward,
    python_operator_in_cpp,
    quantization_left_out,
    specialized_number,
    tensor_is_plain_attribute,
    tensor_leaves_torch,
    tensor_subclass_not_kept,
    tensors_on_different_devices,
    transform_lost,
    undeclared_mutation,
    unexpected_entry,
    unreplayable_read,
    unsupported_python,
    unused_dynamic_dim,
    weights_exceed_memory,
    wrong_weight_dtype,
    wrong_weight_shape,
    zero_or_one_example,
)
from fakexport.rules.rule import FailsOn, Rule

__all__ = ["FailsOn", "Rule", "all_rules", "rule"]

_MODULES = (
    internal_fault,
    unreplayable_read,
    construction_failed,
    tensor_subclass_not_kept,
    input_not_derived,
    quantization_left_out,
    data_dependent_branch,
    forward_failed,
    data_dependent_value,
    data_dependent_loop,
    tensor_leaves_torch,
    unsupported_python,
    specialized_number,
    module_moved,
    dtype_mismatch,
    transform_lost,
    data_dependent_shape,
    dynamic_dim_specialized,
    zero_or_one_example,
    dims_must_be_equal,
    unused_dynamic_dim,
    missing_fake_kernel,
    fake_kernel_disagrees,
    undeclared_mutation,
    missing_fake_class,
    hard_coded_device,
    tensors_on_different_devices,
    weights_exceed_memory,
    missing_device_kernel,
    absent_device,
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
    executorch_cannot_run,
    onnx_cannot_express,
    not_compilable,
    python_operator_in_cpp,
    operator_in_training_mode,
    input_written,
    attribute_changed,
    tensor_is_plain_attribute,
    output_shares_memory,
    print_in_forward,
    draw_outside_torch,
)


def all_rules() -> tuple[Rule, ...]:
    """Return every rule, in the order of the codes."""
    return tuple(module.RULE for module in _MODULES)


def rule(code: str) -> Rule:
    """Return the rule with a code or a name.

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
