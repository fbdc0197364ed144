"""Run the real kernel of a Python custom operator to write its missing fake kernel."""

from __future__ import annotations

import math
from collections.abc import Iterable
from typing import Any

import torch

from fakexport._torch.operator_schema import argument_values, is_python_operator
from fakexport._torch.pytree import tree_leaves
from fakexport.capture import OperatorCall
from fakexport.diagnose.made_up_inputs import NotComparable, made_up_inputs


def observed_results(call: OperatorCall) -> str | None:
    """Return the expression of a fake kernel's results, `torch.empty_like(x)`, where one run leaves no other
    choice.

    Only an operator of `torch.library.custom_op` is run: its kernels can raise but not crash. A result is
    like an argument if it has its shape, and if no other size of the call could have given that shape.

    Args:
        call: The call that could not be traced.
    Returns:
        None where the operator cannot be run, or its shapes have more than one explanation.
    """
    if not is_python_operator(call.operator):
        return None
    try:
        args, kwargs = made_up_inputs((call.args, call.kwargs))
        given = argument_values(call.overload, args, kwargs)
        with torch.no_grad():
            results = call.overload(*args, **kwargs)
    except (Exception, NotComparable):
        return None
    texts = [_like(result, given) for result in (results if isinstance(results, tuple) else (results,))]
    return None if None in texts else ", ".join(text for text in texts if text)


def _like(result: Any, given: dict[str, Any]) -> str | None:
    if not isinstance(result, torch.Tensor) or not result.is_contiguous():
        return None
    for name, value in given.items():
        if not isinstance(value, torch.Tensor) or value.shape != result.shape or not value.is_contiguous():
            continue
        others = [other for key, other in given.items() if key != name]
        if not _is_only_explanation(value, others):
            return None
        return f"torch.empty_like({name}{'' if value.dtype is result.dtype else f', dtype={result.dtype}'})"
    return None


def _is_only_explanation(tensor: torch.Tensor, others: Iterable[Any]) -> bool:
    """Return whether the sizes of a tensor cannot be those of other arguments, or one of its own twice."""
    sizes = list(tensor.shape)
    if len(set(sizes)) < len(sizes) or any(size < 2 for size in sizes):
        return False
    for leaf in tree_leaves(list(others)):
        if isinstance(leaf, torch.Tensor):
            if leaf.shape != tensor.shape and set(leaf.shape) & set(sizes):
                return False
        elif isinstance(leaf, int) and leaf in sizes:
            return False
    return math.prod(sizes) > 0
