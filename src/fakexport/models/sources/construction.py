"""Construct the model of a source with real tensors on the CPU and a fixed seed."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
from torch import nn

from fakexport._torch.default_dtype import default_dtype
from fakexport.error import InvalidValue, type_and_line
from fakexport.models.sources.source import ExampleInputs, Source

SEED = 0


def constructed(
    source: Source, dtype: torch.dtype | None, *, seed: int = SEED
) -> tuple[nn.Module, ExampleInputs | None]:
    """Construct the real module, and return it with the example inputs of the factory or source, on the CPU.

    Args:
        dtype: torch's default dtype during the construction. Default: the dtype that the source specifies.
        seed: Seed for weights and the factory's inputs. Afterwards, torch's generator is restored.
    Raises:
        ValueError: the factory failed. The message contains its error.
    """
    with torch.random.fork_rng():
        torch.manual_seed(seed)
        with default_dtype(dtype or source.dtype):
            made = _called(source.spec, source.factory)
        if not isinstance(made, nn.Module):
            module, args, *rest = made
            return module, ExampleInputs(tuple(args), dict(*rest))
        try:
            return made, source.example_inputs(made, "cpu", dtype)
        except ValueError:
            return made, None


def _called(spec: str, factory: Callable[[], Any]) -> Any:
    try:
        return factory()
    except Exception as error:
        raise InvalidValue(f"{spec} does not run on this machine: {type_and_line(error)}") from error
