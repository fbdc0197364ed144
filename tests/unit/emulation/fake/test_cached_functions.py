"""Searching loaded modules for cached functions does not run the code of lazy objects."""

from __future__ import annotations

import functools
import sys
from types import ModuleType

import torch
from torch import nn

import fakexport as fe


class Lazy:
    """As six's `MovedModule` and werkzeug's `LocalProxy`: a question imports a module, and fails."""

    def __getattr__(self, name):
        raise ImportError(f"no module for {name}")

    @property
    def __class__(self):
        raise RuntimeError("outside of a request")


class Members:
    lazy = Lazy()

    @staticmethod
    @functools.cache
    def cached(size: int) -> torch.Tensor:
        return torch.ones(size)


def test_lazy_objects_are_not_asked(monkeypatch):
    module = ModuleType("lazy_module")
    Members.__module__ = module.__name__
    module.Members, module.lazy = Members, Lazy()
    monkeypatch.setitem(sys.modules, module.__name__, module)

    class Model(nn.Module):
        def forward(self, x: torch.Tensor) -> torch.Tensor:
            return x + Members.cached(3)

    fe.export(Model, (torch.zeros(2, 3),))

    assert not isinstance(Members.cached(3), torch._subclasses.FakeTensor)
