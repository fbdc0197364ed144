"""The module that a program was captured from."""

from __future__ import annotations

import weakref

from torch import nn
from torch.export import ExportedProgram

__all__ = ["origin_of", "remember_origin"]

_ORIGINS: weakref.WeakKeyDictionary[ExportedProgram, nn.Module] = weakref.WeakKeyDictionary()


def remember_origin(program: ExportedProgram, module: nn.Module) -> None:
    """Notes that `program` was captured from `module`, as long as both live; nothing of either changes.

    A library's module knows more than its program: how its checkpoints are laid out, for one.
    """
    _ORIGINS[program] = module


def origin_of(program: ExportedProgram) -> nn.Module | None:
    """The module of this very program, or None: after loading, or for a program made of another."""
    return _ORIGINS.get(program)
