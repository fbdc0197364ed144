"""What `quick_handlers` relies on."""

from __future__ import annotations

import ast
import inspect
import textwrap
from typing import Any

import torch
from torch.fx.experimental.proxy_tensor import ProxyTorchDispatchMode, make_fx
from torch.utils._python_dispatch import TorchDispatchMode

from fakexport._torch.speed.quick_handlers import quick_handlers


def test_the_tracer_does_not_read_the_classes_of_the_arguments() -> None:
    source = textwrap.dedent(inspect.getsource(inspect.unwrap(ProxyTorchDispatchMode.__torch_dispatch__)))

    assert "types" in [each.arg for each in ast.walk(ast.parse(source)) if isinstance(each, ast.arg)]
    assert "types" not in [each.id for each in ast.walk(ast.parse(source)) if isinstance(each, ast.Name)]


def traced(*, is_quick: bool) -> str:
    def function(x: torch.Tensor) -> torch.Tensor:
        with torch.no_grad():
            return torch.nn.functional.linear(x, x).relu_()

    tracing = make_fx(function, tracing_mode="fake", pre_dispatch=True)
    if not is_quick:
        return tracing(torch.ones(2, 2)).code
    with quick_handlers():
        return tracing(torch.ones(2, 2)).code


def test_the_graph_is_the_same() -> None:
    assert traced(is_quick=True) == traced(is_quick=False)


def test_the_mode_is_back_after_an_error() -> None:
    def failing(x: torch.Tensor) -> torch.Tensor:
        try:
            torch.mm(x, x[:1])
        except RuntimeError:
            return x + 1
        raise AssertionError

    with quick_handlers():
        made = make_fx(failing, tracing_mode="fake", pre_dispatch=True)(torch.ones(2, 2))

    assert "torch.ops.aten.add.Tensor(" in made.code


def test_another_mode_on_top_gets_the_classes() -> None:
    seen: list[Any] = []

    class Notes(TorchDispatchMode):
        def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
            seen.append(func)
            return func(*args, **(kwargs or {}))

    with quick_handlers(), Notes():
        torch.ones(2).add(1)

    assert torch.ops.aten.add.Tensor in seen
