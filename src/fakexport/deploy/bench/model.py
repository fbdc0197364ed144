"""The eager model of a benchmark: constructed in each process that needs it, the same in all of them."""

from __future__ import annotations

import inspect
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

import torch
from torch import nn

from fakexport._torch.pytree import tree_leaves, tree_map
from fakexport.capture import bound_inputs
from fakexport.capture.plain_forward import plain
from fakexport.sources import ExampleInputs, Source, resolve
from fakexport.weights import dtype_named

from ..construction import SEED, constructed
from .request import Request

__all__ = ["Call", "Inputs", "Model", "call_of", "copied", "tensors_of"]


@dataclass(frozen=True)
class Inputs:
    """The arguments of a call, on the CPU.

    Args:
        args: Positional ones; none, where all have names.
        kwargs: Those by name, in the order of the flat call.
    """

    args: tuple[Any, ...]
    kwargs: dict[str, Any]

    @classmethod
    def named(cls, module: nn.Module, inputs: ExampleInputs) -> Inputs:
        """All by name where `forward` takes them so.

        Raises:
            TypeError: `forward` does not take these inputs.
        """
        kinds = {parameter.kind for parameter in inspect.signature(module.forward).parameters.values()}
        bound = bound_inputs(module, inputs.args, inputs.kwargs)
        if kinds & {inspect.Parameter.POSITIONAL_ONLY, inspect.Parameter.VAR_POSITIONAL}:
            return cls(inputs.args, dict(inputs.kwargs))
        return cls((), bound)

    @property
    def tensors(self) -> list[torch.Tensor]:
        """The tensors among the leaves, in order."""
        return [leaf for leaf in tree_leaves((self.args, self.kwargs)) if isinstance(leaf, torch.Tensor)]


Call = Callable[[Inputs], list[torch.Tensor]]
"""Runs something on inputs that it may write into, and gives the tensors of its outputs in order."""


@dataclass(frozen=True)
class Model:
    """A module and where it comes from.

    Args:
        source: Where it comes from.
        module: In eval mode, on the CPU.
        examples: The inputs that its factory or source gives, or None.
        was_training: Whether it came in training mode.
    """

    source: Source
    module: nn.Module
    examples: ExampleInputs | None
    was_training: bool

    @classmethod
    def of(cls, request: Request, *, seed: int = SEED) -> Model:
        """Constructs the model.

        Raises:
            ValueError: the source cannot be read, or the model cannot be constructed.
        """
        source = resolve(request.source)
        dtype = None if request.dtype is None else dtype_named(request.dtype)
        module, examples = constructed(source, dtype, seed=seed)
        was_training = module.training
        return cls(source, module.eval(), examples, was_training)


def call_of(module: Callable[..., Any]) -> Call:
    """A module as a call, without gradients."""

    def call(inputs: Inputs) -> list[torch.Tensor]:
        with torch.no_grad():
            return tensors_of(module(*inputs.args, **inputs.kwargs))

    return call


def tensors_of(outputs: Any) -> list[torch.Tensor]:
    """The tensors of what a model returns, in the order in which a program of it gives them."""
    return [leaf for leaf in tree_leaves(plain(outputs)) if isinstance(leaf, torch.Tensor)]


def copied(inputs: Inputs) -> Inputs:
    """The same inputs in memory of their own."""

    def copy(leaf: Any) -> Any:
        return leaf.clone() if isinstance(leaf, torch.Tensor) else leaf

    kwargs: Mapping[str, Any] = tree_map(copy, inputs.kwargs)
    return Inputs(tree_map(copy, inputs.args), dict(kwargs))
