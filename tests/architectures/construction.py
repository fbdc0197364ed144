"""Constructing a module under one seed, eagerly or deferred, in a way that can be compared."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass

import torch
from torch import nn

from fakexport.emulation.fake import deferred_init, materialize_module

from .module_state import ModuleState, module_state

__all__ = ["Construction", "assert_same", "constructed", "deferred", "filled_memory"]


@dataclass(frozen=True)
class Construction:
    """What a construction left behind: the module, and where the random generator goes on."""

    state: ModuleState
    next_draw: tuple[float, ...]


def constructed(build: Callable[[], nn.Module]) -> Construction:
    """Constructs a module under seed 0."""
    torch.manual_seed(0)
    module = build()
    return Construction(module_state(module), tuple(torch.rand(8).tolist()))


def deferred(build: Callable[[], nn.Module]) -> Callable[[], nn.Module]:
    """Returns a function that builds without data, and then gives the module its data."""

    def build_deferred() -> nn.Module:
        module = deferred_init(build)
        materialize_module(module)
        return module

    return build_deferred


@contextmanager
def filled_memory() -> Iterator[None]:
    """Memory that nobody initialises holds NaN or the largest integer, and can be compared."""
    was_deterministic = torch.are_deterministic_algorithms_enabled()
    was_filled = torch.utils.deterministic.fill_uninitialized_memory
    torch.use_deterministic_algorithms(True)
    torch.utils.deterministic.fill_uninitialized_memory = True
    try:
        yield
    finally:
        torch.use_deterministic_algorithms(was_deterministic)
        torch.utils.deterministic.fill_uninitialized_memory = was_filled


def assert_same(state: ModuleState, expected: ModuleState) -> None:
    """Compares part by part: two whole states would take minutes to print."""
    assert list(state.tensors) == list(expected.tensors)
    differing = [
        f"{path}: {tensor} and {expected.tensors[path]}"
        for path, tensor in state.tensors.items()
        if tensor != expected.tensors[path]
    ]
    assert not differing, "\n".join(differing)
    assert state.tied == expected.tied
    assert state.shared == expected.shared
    assert state.persistent == expected.persistent
    assert state.numbers == expected.numbers
