"""The weights that a model or a program needs from a checkpoint."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field
from math import prod
from typing import Any

import torch
from torch import nn
from torch.export import ExportedProgram

from fakexport._torch.emulation.wrapper_subclasses import flat_tensors
from fakexport.exporting.program import has_value, names_by_tensor

ModelSource = str | nn.Module | Callable[[], Any]


@dataclass(frozen=True)
class Weight:
    """Shape and dtype of a tensor that a checkpoint contains or has to contain."""

    shape: tuple[int, ...]
    dtype: torch.dtype

    @property
    def nbytes(self) -> int:
        """Size of the elements in bytes."""
        return prod(self.shape) * self.dtype.itemsize

    def __str__(self) -> str:
        return f"{str(self.dtype).removeprefix('torch.')}{list(self.shape)}"


@dataclass(frozen=True)
class ExpectedWeights:
    """The weights that a model or program needs, by name.

    Args:
        weights: Parameters and persistent buffers.
        constants: The program's constants without a value, which `bind` needs (FE601, FE602, FE603).
        tied: Groups of names that share one tensor.
        transient: Names of non-persistent buffers and constants with values, which checkpoints may omit.
        model: The module, built without data, if there is one.
    """

    weights: Mapping[str, Weight]
    constants: Mapping[str, Weight] = field(default_factory=dict)
    tied: tuple[tuple[str, ...], ...] = ()
    transient: frozenset[str] = frozenset()
    model: nn.Module | None = None

    @property
    def all(self) -> dict[str, Weight]:
        """Weights, and constants without a value."""
        return {**self.weights, **self.constants}

    def aliases(self) -> dict[str, tuple[str, ...]]:
        """Map each tied name to all names of its tensor."""
        return {name: names for names in self.tied for name in names}

    def one_per_tie(self, names: Iterable[str]) -> tuple[str, ...]:
        """Replace each name by the first name of its tensor, without duplicates."""
        aliases = self.aliases()
        return tuple(dict.fromkeys(aliases.get(name, (name,))[0] for name in names))


def expected_of_module(module: nn.Module) -> ExpectedWeights:
    """Return the tensors of a module's state dict, with wrapper subclasses unwrapped."""
    state = {
        name: tensor
        for name, tensor in flat_tensors(module.state_dict(keep_vars=True)).items()
        if isinstance(tensor, torch.Tensor)
    }
    buffers = flat_tensors(dict(module.named_buffers(remove_duplicate=False)))
    return ExpectedWeights(
        weights={name: _weight(tensor) for name, tensor in state.items()},
        tied=tied_names(state),
        transient=frozenset(buffers.keys() - state.keys()),
        model=module,
    )


def expected_of_program(program: ExportedProgram) -> ExpectedWeights:
    """Return the tensors of a program's state dict, and its constants without a value."""
    state = program.state_dict
    constants = {name: c for name, c in program.constants.items() if isinstance(c, torch.Tensor)}
    missing = {name: _weight(c) for name, c in constants.items() if not has_value(c)}
    return ExpectedWeights(
        weights={name: _weight(tensor) for name, tensor in state.items()},
        constants=missing,
        tied=tied_names({**state, **{name: constants[name] for name in missing}}),
        transient=frozenset(constants.keys() - missing.keys()),
    )


def fake_model(
    source: ModelSource,
    *,
    topology: str = "cpu",
    dtype: torch.dtype | None = None,
    trust_remote_code: bool = False,
) -> nn.Module:
    """Build the module that a source describes, without data. If the source is a module, return it."""
    if isinstance(source, nn.Module):
        return source
    from fakexport.emulation.devices import emulate
    from fakexport.exporting.capture import build_source
    from fakexport.models.sources import resolve

    found = resolve(source, trust_remote_code=trust_remote_code)
    with emulate(topology) as devices:
        return build_source(found, devices, dtype=dtype).module


def _weight(tensor: torch.Tensor) -> Weight:
    return Weight(tuple(tensor.shape), tensor.dtype)


def tied_names(tensors: Mapping[str, torch.Tensor]) -> tuple[tuple[str, ...], ...]:
    """Return the groups of at least two names whose tensors share memory."""
    return tuple(tuple(names) for names in names_by_tensor(tensors) if len(names) > 1)
