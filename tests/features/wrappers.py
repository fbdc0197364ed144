"""Features of `torch.nn.utils`, hooks, autograd, autocast and compilation: what stands around a module."""

from __future__ import annotations

import copy
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn.utils import parametrizations, parametrize, prune, stateless
from torch.utils.checkpoint import checkpoint as recomputed

from .feature import Calling, Made, Weighted, feature, ramp, register, register_weighted

register(
    weight_norm=lambda: (parametrizations.weight_norm(nn.Linear(4, 3)), (ramp(2, 4),)),
    spectral_norm_train=lambda: (parametrizations.spectral_norm(nn.Linear(4, 3)).train(), (ramp(2, 4),)),
    pruned=lambda: (prune.l1_unstructured(nn.Linear(4, 4), "weight", amount=3), (ramp(2, 4),)),
)
register_weighted(
    checkpoint=lambda x: recomputed(torch.tanh, x, use_reentrant=False),
    compiled_inside=torch.compile(lambda x: x.sin() + 1, backend="eager"),
    compiler_disabled=torch.compiler.disable(lambda x: x.sin() + 1),
)


@feature
def own_parametrization() -> Made:
    class Symmetric(nn.Module):
        def forward(self, weight: Tensor) -> Tensor:
            return weight.triu() + weight.triu(1).mT

    module = nn.Linear(4, 4)
    parametrize.register_parametrization(module, "weight", Symmetric())
    return module, (ramp(2, 4),)


@feature
def stateless_call() -> Made:
    class Stateless(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.linear = nn.Linear(4, 4)

        def forward(self, x: Tensor) -> Tensor:
            state = {name: weight * 2 for name, weight in self.linear.named_parameters()}
            return stateless.functional_call(self.linear, state, (x,))

    return Stateless(), (ramp(2, 4),)


@feature
def fused_conv_bn() -> Made:
    fused = nn.utils.fuse_conv_bn_eval(nn.Conv2d(3, 4, 3).eval(), nn.BatchNorm2d(4).eval())
    return fused, (ramp(2, 3, 8, 8),)


@feature
def skip_init_then_filled() -> Made:
    module = nn.utils.skip_init(nn.Linear, 4, 3, device=torch.get_default_device())
    nn.init.normal_(module.weight)
    nn.init.zeros_(module.bias)
    return module, (ramp(2, 4),)


@feature
def forward_hooks() -> Made:
    module = nn.Sequential(nn.Linear(4, 4), nn.ReLU())
    module[0].register_forward_pre_hook(lambda module, args: (args[0] * 2,))
    module[1].register_forward_hook(lambda module, args, output: output + 1)
    return module, (ramp(2, 4),)


@feature
def backward_hook() -> Made:
    module = nn.Linear(4, 4)
    module.register_full_backward_hook(lambda module, grads, outputs: None)
    return module, (ramp(2, 4),)


@feature
def custom_function() -> Made:
    class Doubled(torch.autograd.Function):
        @staticmethod
        def forward(ctx: Any, x: Tensor) -> Tensor:
            ctx.save_for_backward(x)
            return x * 2

        @staticmethod
        def backward(ctx: Any, grad: Tensor) -> Tensor:
            return grad * 2

    return Weighted(lambda x: Doubled.apply(x) + 1), (ramp(2, 4),)


@feature
def autocast() -> Made:
    class Cast(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.linear = nn.Linear(4, 4)

        def forward(self, x: Tensor) -> Tensor:
            with torch.autocast(x.device.type, dtype=torch.bfloat16):
                return self.linear(x)

    return Cast(), (ramp(2, 4),)


@feature
def no_grad_and_detach() -> Made:
    def partly(x: Tensor) -> Tensor:
        with torch.no_grad():
            scale = x.norm()
        return x / scale + x.detach()

    return Weighted(partly), (ramp(2, 4),)


@feature
def inference_mode() -> Made:
    def inferred(x: Tensor) -> Tensor:
        with torch.inference_mode():
            return x * 2

    return Weighted(inferred), (ramp(2, 4),)


@feature
def autograd_grad() -> Made:
    def sloped(x: Tensor) -> Tensor:
        with torch.enable_grad():
            y = x.detach().requires_grad_()
            (gradient,) = torch.autograd.grad(y.pow(3).sum(), y)
        return gradient

    return Calling(sloped), (ramp(2, 4),)


@feature
def deep_copied_real_tensor() -> Made:
    class Copied(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            here = torch.get_default_device()
            self.register_buffer("table", copy.deepcopy(_TABLE).to(here), persistent=False)
            self.linear = copy.deepcopy(_LINEAR).to(here)

        def forward(self, x: Tensor) -> Tensor:
            return self.linear(x) + self.table

    return Copied(), (ramp(2, 4),)


@feature
def numpy_attribute() -> Made:
    class Numbers(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            import numpy

            self.linear = nn.Linear(4, 4)
            self.scale = torch.from_numpy(numpy.arange(4, dtype="float32"))

        def forward(self, x: Tensor) -> Tensor:
            return self.linear(x) * self.scale.to(x.device)

    return Numbers(), (ramp(2, 4),)


@feature
def branch_on_a_constant() -> Made:
    class Branching(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.linear = nn.Linear(4, 4)
            self.register_buffer("stride", torch.tensor(2), persistent=False)
            self.limits = torch.tensor([1.0, 3.0])

        def forward(self, x: Tensor) -> Tensor:
            y = self.linear(x) * self.stride.item()
            return y.relu() if self.limits.max() > 2 else y

    return Branching(), (ramp(2, 4),)


@feature
def length_from_a_buffer() -> Made:
    class Padded(nn.Module):
        """As in encodec: padding is computed with tensors in buffers."""

        def __init__(self) -> None:
            super().__init__()
            self.conv = nn.Conv1d(1, 2, 3)
            self.register_buffer("kernel", torch.tensor(3, dtype=torch.int64), persistent=False)
            self.register_buffer("step", torch.tensor(2, dtype=torch.int64), persistent=False)

        def forward(self, x: Tensor) -> Tensor:
            frames = (x.shape[-1] - self.kernel) / self.step + 1
            extra = torch.ceil(frames).to(torch.int64) * self.step + 1 - x.shape[-1]
            return self.conv(nn.functional.pad(x, (0, int(extra))))

    return Padded(), (ramp(1, 1, 10),)


@feature
def cache_in_a_plain_object() -> Made:
    class Cache:
        def __init__(self) -> None:
            self.keys = torch.zeros(2, 4)

    class Cached(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.linear, self.cache = nn.Linear(4, 4), Cache()

        def forward(self, x: Tensor) -> Tensor:
            self.cache.keys.copy_(x)
            return self.linear(self.cache.keys)

    return Cached(), (ramp(2, 4),)


@feature
def counting_buffer() -> Made:
    class Counting(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.register_buffer("count", torch.zeros(()))
            self.register_buffer("seen", torch.zeros(3), persistent=False)

        def forward(self, x: Tensor) -> Tensor:
            self.count.add_(1)  # After `+=`, torch.export writes it once more.
            self.seen[1:].add_(x.sum())
            return x * self.count + self.seen.sum()

    return Counting(), (ramp(2, 4),)


_TABLE = ramp(4)
_LINEAR = nn.Linear(4, 4)
