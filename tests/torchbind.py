"""The C++ classes that torch's own wheel has for tests, with fake classes, and models that hold some."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import torch
from torch import nn
from torch._library.fake_class_registry import deregister_fake_class

LIBRARY = Path(torch.__file__).parent / "lib" / "libtorchbind_test.so"

NAMESPACE = "_TorchScriptTesting"


class FakeFoo:
    def __init__(self, x: int, y: int) -> None:
        self.x, self.y = x, y

    @classmethod
    def __obj_unflatten__(cls, state: Any) -> FakeFoo:
        return cls(**dict(state))

    def add_tensor(self, z: torch.Tensor) -> torch.Tensor:
        return torch.empty_like(z)


class FakeTensorQueue:
    def __init__(self, queue: list[torch.Tensor]) -> None:
        self.queue = queue

    @classmethod
    def __obj_unflatten__(cls, state: Any) -> FakeTensorQueue:
        return cls(**dict(state))

    def push(self, x: torch.Tensor) -> None:
        self.queue.append(x)

    def pop(self) -> torch.Tensor:
        return self.queue.pop(0)


@contextmanager
def fake_classes() -> Iterator[None]:
    """In this context the library is loaded, which it stays, and its classes have fake ones."""
    torch.ops.load_library(LIBRARY)
    fakes = {f"{NAMESPACE}::_Foo": FakeFoo, f"{NAMESPACE}::_TensorQueue": FakeTensorQueue}
    for name, fake in fakes.items():
        torch._library.register_fake_class(name, fake)
    try:
        yield
    finally:
        for name in fakes:
            deregister_fake_class(name)


def foo(x: int, y: int) -> torch.ScriptObject:
    return torch.classes._TorchScriptTesting._Foo(x, y)


def queue(*tensors: torch.Tensor) -> torch.ScriptObject:
    made = torch.classes._TorchScriptTesting._TensorQueue(torch.full((2,), -1.0))
    for tensor in tensors:
        made.push(tensor)
    return made


class Adds(nn.Module):
    """Gives `(x + y) * linear(z)`, of an object that holds the numbers x and y."""

    def __init__(self, x: int = 10, y: int = 20) -> None:
        super().__init__()
        self.linear = nn.Linear(3, 3)
        self.foo = foo(x, y)

    def forward(self, z: torch.Tensor) -> torch.Tensor:
        return self.foo.add_tensor(self.linear(z))


class Waits(nn.Module):
    """Adds what it was called with two calls before, and first what its queue holds."""

    def __init__(self) -> None:
        super().__init__()
        first = torch.arange(6.0).reshape(2, 3)
        self.queue = queue(first, first.t().contiguous().t())

    def forward(self, z: torch.Tensor) -> torch.Tensor:
        self.queue.push(z * 2)
        return self.queue.pop() + z
