"""Tensor subclasses of the tests' own, and the calls of a program that was made of a model with some."""

from __future__ import annotations

from typing import Any

import torch
from torch import nn
from torch.export import ExportedProgram
from torch.utils._pytree import tree_map_only

__all__ = ["Holder", "Scaled", "calls", "quantized", "twice_quantized"]


class Scaled(torch.Tensor):
    """Integers and a scale, of two dtypes, that pass for a floating tensor. The integers may be one."""

    @staticmethod
    def __new__(cls, data: torch.Tensor, scale: torch.Tensor) -> Scaled:
        return torch.Tensor._make_wrapper_subclass(  # type: ignore[attr-defined, no-any-return]
            cls, data.shape, strides=data.stride(), dtype=scale.dtype, device=data.device
        )

    def __init__(self, data: torch.Tensor, scale: torch.Tensor) -> None:
        self.held, self.scale = data, scale

    def __repr__(self) -> str:
        return "Scaled"

    def __tensor_flatten__(self) -> tuple[list[str], None]:
        return ["held", "scale"], None

    @classmethod
    def __tensor_unflatten__(cls, inner: Any, context: None, size: Any, stride: Any) -> Scaled:
        return cls(inner["held"], inner["scale"])

    def plain(self) -> torch.Tensor:
        held = self.held.plain() if isinstance(self.held, Scaled) else self.held
        return held.to(self.scale.dtype) * self.scale

    @classmethod
    def __torch_dispatch__(cls, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        kwargs = kwargs or {}
        if func in (torch.ops.aten.detach.default, torch.ops.aten.clone.default):
            return cls(func(args[0].held), func(args[0].scale))
        if func is torch.ops.aten._to_copy.default:
            held = {name: value for name, value in kwargs.items() if name != "dtype"}
            return cls(func(args[0].held, **held), func(args[0].scale, **kwargs))
        return func(*tree_map_only(Scaled, Scaled.plain, args), **tree_map_only(Scaled, Scaled.plain, kwargs))


def quantized(weight: torch.Tensor) -> Scaled:
    """The nearest integers, with one scale per row."""
    scale = weight.abs().amax(1, keepdim=True) / 127
    return Scaled((weight / scale).round().to(torch.int8), scale)


def twice_quantized(weight: torch.Tensor) -> Scaled:
    """A wrapper in a wrapper."""
    scale = weight.abs().amax(1, keepdim=True) / 127
    return Scaled(Scaled((weight / scale / 2).round().to(torch.int8), torch.full((1,), 2.0)), scale)


class Holder(nn.Module):
    """Multiplies by `weight`, which it has as a parameter, as a buffer or as an attribute."""

    def __init__(self, weight: torch.Tensor, place: str = "parameter") -> None:
        super().__init__()
        if place == "parameter":
            self.weight = nn.Parameter(weight, requires_grad=False)
        elif place == "attribute":
            self.weight = weight  # type: ignore[assignment]
        else:
            self.register_buffer("weight", weight, persistent=place == "buffer")

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return x @ self.weight


def calls(program: ExportedProgram) -> list[str]:
    """Every call of a program with its arguments; a tensor inside of a weight has its flattened name."""
    names: dict[torch.fx.Node, str] = {}
    targets = {s.arg.name: s.target or s.arg.name for s in program.graph_signature.input_specs}
    found: list[str] = []
    for node in program.graph.nodes:
        if node.op == "placeholder":
            names[node] = targets[node.name]
        elif node.op == "call_function" and "access_subclass_inner_tensor" in str(node.target):
            wrapper, attribute = node.args
            index = wrapper.meta["val"].__tensor_flatten__()[0].index(attribute)
            owner, dot, own = names[wrapper].rpartition(".")
            names[node] = f"{owner}{dot}parametrizations.{own}.original{index}"
        else:
            args = torch.fx.node.map_arg((node.args, node.kwargs), names.__getitem__)
            names[node] = f"%{len(found)}"
            found.append(f"{node.target}{args}")
    return found
