"""The request for a benchmark, and the eager model. Each process that needs the model constructs it again."""

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
from fakexport.exporting.capture import bound_inputs, plain
from fakexport.models.sources import SEED, ExampleInputs, Source, constructed, parse_dtype, resolve


@dataclass(frozen=True)
class Inputs:
    """The arguments of a call on the CPU, in flat order. The first `positional` are passed by position."""

    values: dict[str, Any]
    positional: int = 0

    @classmethod
    def of(cls, module: nn.Module, inputs: ExampleInputs) -> Inputs:
        """Bind the inputs to `forward`. They are passed by name unless they must be positional."""
        values = bound_inputs(module, inputs.args, inputs.kwargs)
        kinds = {parameter.kind for parameter in inspect.signature(module.forward).parameters.values()}
        has_nameless = kinds & {inspect.Parameter.POSITIONAL_ONLY, inspect.Parameter.VAR_POSITIONAL}
        return cls(values, len(inputs.args) if has_nameless else 0)

    @property
    def args(self) -> tuple[Any, ...]:
        """The arguments that are passed by position."""
        return tuple(self.values.values())[: self.positional]

    @property
    def kwargs(self) -> dict[str, Any]:
        """The arguments that are passed by name."""
        return dict(list(self.values.items())[self.positional :])

    @property
    def tensors(self) -> list[torch.Tensor]:
        """All tensors in the arguments, in order."""
        return [leaf for leaf in tree_leaves(self.values) if isinstance(leaf, torch.Tensor)]


Call = Callable[[Inputs], list[torch.Tensor]]
"""Function that runs a format on inputs, which it may modify, and returns the output tensors in order."""


@dataclass(frozen=True)
class Model:
    """A module in eval mode on the CPU, its source, and the source's example inputs, if any."""

    source: Source
    module: nn.Module
    examples: ExampleInputs | None
    was_training: bool

    @classmethod
    def of(cls, request: Request, *, seed: int = SEED) -> Model:
        """Construct the model of a request."""
        os.chdir(request.folder)  # Constructing an earlier model may have changed the working directory.
        source = resolve(request.source)
        dtype = None if request.dtype is None else parse_dtype(request.dtype)
        module, examples = constructed(source, dtype, seed=seed)
        was_training = module.training
        return cls(source, module.eval(), examples, was_training)


def call_of(module: Callable[..., Any]) -> Call:
    """Wrap a module as a `Call` that runs without gradients."""

    def call(inputs: Inputs) -> list[torch.Tensor]:
        with torch.no_grad():
            return tensors_of(module(*inputs.args, **inputs.kwargs))

    return call


def tensors_of(outputs: Any) -> list[torch.Tensor]:
    """Return the tensors of a model's output, in the order in which its exported program returns them."""
    return [leaf for leaf in tree_leaves(plain(outputs)) if isinstance(leaf, torch.Tensor)]


def copied(inputs: Inputs) -> Inputs:

    def copy(leaf: Any) -> Any:
        return leaf.clone() if isinstance(leaf, torch.Tensor) else leaf

    values: dict[str, Any] = tree_map(copy, inputs.values)
    return replace(inputs, values=values)


_FILE = "request.json"


@dataclass(frozen=True)
class Request:
    """The model to measure, and how to measure it: the arguments of `bench`.

    Relative paths in the other fields are relative to `folder`.
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
        """Read the request from a folder."""
        found: dict[str, Any] = json.loads((folder / _FILE).read_text())
        fields: dict[str, Any] = {
            key: tuple(item) if isinstance(item, list) else item for key, item in found.items()
        }
        return cls(**fields)
