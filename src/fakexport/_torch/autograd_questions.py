"""Questions about gradients that only a trace without a memo of operators can answer. Seen on torch 2.13.

Source: `torch/autograd/graph.py:_engine_run_backward`.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
import torch.autograd
from torch.autograd import graph

from .fake_tensors import FakeTensor
from .patching import Patches, in_force


class TraceNeeded(BaseException):
    """The model asks how a tensor was computed, which a memo of operators does not know.

    Not an `Exception`: a model's `except` must not catch it.
    """


def autograd_questions(has_stood_in: Callable[[], bool]) -> Patches:
    """Return a context in which a question for gradients raises `TraceNeeded` if its answer may be wrong."""
    stock: Any = vars(torch._C.TensorBase)["grad_fn"]

    def grad_fn(tensor: torch.Tensor) -> Any:
        found = stock.__get__(tensor)
        if found is not None and has_stood_in():
            raise TraceNeeded("the gradient function of a tensor")
        return found

    def backward(stock_backward: Callable[..., Any]) -> Callable[..., Any]:
        def run(*args: Any, **kwargs: Any) -> Any:
            if has_stood_in():
                raise TraceNeeded("gradients in forward")
            return stock_backward(*args, **kwargs)

        return run

    owners = (torch.autograd, graph)
    name = "_engine_run_backward"
    return Patches(
        {
            (FakeTensor, "grad_fn"): property(grad_fn),
            **{(owner, name): backward(in_force(owner, name)) for owner in owners if hasattr(owner, name)},
        }
    )
