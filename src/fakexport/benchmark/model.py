"""What is measured, and the eager model, which is constructed in each process that needs it."""

from __future__ import annotations

import inspect
import json
import os
from collections.abc import Callable
from dataclasses import asdict, dataclass, field, replace
from pathlib import Path
from typing import Any

import torch
from torch import nn

from fakexport._torch.pytree import tree_leaves, tree_map
from fakexport.capture import bound_inputs, plain
from fakexport.sources import SEED, ExampleInputs, Source, constructed, parse_dtype, resolve


@dataclass(frozen=True)
class Inputs:
    """The arguments of a call, on the CPU, in flat order; the first `positional` are passed by position."""

    values: dict[str, Any]
    positional: int = 0

    @classmethod
    def of(cls, module: nn.Module, inputs: ExampleInputs) -> Inputs:
        """Return the inputs, passed by name unless they must be positional.

        Raises:
            TypeError: `forward` does not take these inputs.
        """
        values = bound_inputs(module, inputs.args, inputs.kwargs)
        kinds = {parameter.kind for parameter in inspect.signature(module.forward).parameters.values()}
        has_nameless = kinds & {inspect.Parameter.POSITIONAL_ONLY, inspect.Parameter.VAR_POSITIONAL}
        return cls(values, len(inputs.args) if has_nameless else 0)

    @property
    def args(self) -> tuple[Any, ...]:
        """The arguments by position."""
        return tuple(self.values.values())[: self.positional]

    @property
    def kwargs(self) -> dict[str, Any]:
        """The arguments by name."""
        return dict(list(self.values.items())[self.positional :])

    @property
    def tensors(self) -> list[torch.Tensor]:
        """The tensors among the leaves, in order."""
        return [leaf for leaf in tree_leaves(self.values) if isinstance(leaf, torch.Tensor)]


Call = Callable[[Inputs], list[torch.Tensor]]
"Runs something on inputs that it may write into, and returns the tensors of its outputs in order."


@dataclass(frozen=True)
class Model:
    """A module in eval mode, on the CPU, with its source and that source's example inputs, if any."""

    source: Source
    module: nn.Module
    examples: ExampleInputs | None
    was_training: bool

    @classmethod
    def of(cls, request: Request, *, seed: int = SEED) -> Model:
        """Construct the model.

        Raises:
            ValueError: the source cannot be read, or the model cannot be constructed.
        """
        os.chdir(request.folder)  # A model of before may have left it.
        source = resolve(request.source)
        dtype = None if request.dtype is None else parse_dtype(request.dtype)
        module, examples = constructed(source, dtype, seed=seed)
        was_training = module.training
        return cls(source, module.eval(), examples, was_training)


def call_of(module: Callable[..., Any]) -> Call:
    """Return a module as a call, without gradients."""

    def call(inputs: Inputs) -> list[torch.Tensor]:
        with torch.no_grad():
            return tensors_of(module(*inputs.args, **inputs.kwargs))

    return call


def tensors_of(outputs: Any) -> list[torch.Tensor]:
    """Return the tensors of a model's result, in the order in which its program returns them."""
    return [leaf for leaf in tree_leaves(plain(outputs)) if isinstance(leaf, torch.Tensor)]


def copied(inputs: Inputs) -> Inputs:
    """Return the same inputs in memory of their own."""

    def copy(leaf: Any) -> Any:
        return leaf.clone() if isinstance(leaf, torch.Tensor) else leaf

    values: dict[str, Any] = tree_map(copy, inputs.values)
    return replace(inputs, values=values)


_FILE = "request.json"


@dataclass(frozen=True)
class Request:
    """One model and how it is measured.

    Args:
        source: As for `check`.
        dtype: Default floating-point dtype during construction; None for the source's own.
        inputs: As for `check`.
        dynamic: As for `check`.
        libraries: Operator libraries to load first: files, or Python modules.
        threads: Number of torch threads; None for torch's own.
        warmup, repeat: Untimed and timed calls.
        folder: What paths in them are relative to.
    """

    source: str
    dtype: str | None = None
    inputs: tuple[str, ...] = ()
    dynamic: tuple[str, ...] = ()
    libraries: tuple[str, ...] = ()
    threads: int | None = None
    warmup: int = 3
    repeat: int = 20
    folder: str = field(default_factory=os.getcwd)

    def write(self, folder: Path) -> None:
        """Write the request to the folder of the benchmark."""
        (folder / _FILE).write_text(json.dumps(asdict(self)))

    @classmethod
    def read(cls, folder: Path) -> Request:
        """Return the request of a folder."""
        found: dict[str, Any] = json.loads((folder / _FILE).read_text())
        fields: dict[str, Any] = {
            key: tuple(item) if isinstance(item, list) else item for key, item in found.items()
        }
        return cls(**fields)
