"""Features of `torch.func` and of `torch`'s control flow."""

from __future__ import annotations

import torch
from torch import Tensor, nn
from torch._dynamo._trace_wrapped_higher_order_op import TransformGetItemToIndex
from torch._higher_order_ops import associative_scan as scanned_in_parallel
from torch._higher_order_ops import map as mapped
from torch._higher_order_ops import scan as scanned
from torch._higher_order_ops import while_loop as looped

from .feature import Calling, Made, Weighted, feature, ramp, register, register_weighted


def _cubed(x: Tensor) -> Tensor:
    return x.pow(3).sum()


register(
    grad_and_value=lambda: (Calling(torch.func.grad_and_value(_cubed)), (ramp(2, 4),)),
    jvp=lambda: (Calling(lambda x: torch.func.jvp(torch.sin, (x,), (torch.ones_like(x),))[1]), (ramp(2, 4),)),
    jacrev=lambda: (Calling(torch.func.jacrev(lambda x: x.sin().sum(0))), (ramp(2, 4),)),
    jacfwd=lambda: (Calling(torch.func.jacfwd(lambda x: x.sin().sum(0))), (ramp(2, 4),)),
    hessian=lambda: (Calling(torch.func.hessian(_cubed)), (ramp(4),)),
    vmap_of_grad=lambda: (Calling(torch.vmap(torch.func.grad(_cubed))), (ramp(2, 4),)),
    map_rows=lambda: (Weighted(lambda x: mapped(lambda row: row.sin() + 1, x)), (ramp(3, 4),)),
    branch_on_a_size=lambda: (Weighted(lambda x: x.relu() if x.size(0) > 1 else x), (ramp(3, 4),)),
    branch_on_data=lambda: (Weighted(lambda x: x.relu() if x.sum() > 0 else x), (ramp(3, 4),)),
)
register_weighted(
    grad=torch.func.grad(_cubed),
    vmap=torch.vmap(lambda row: row.softmax(0) @ row),
)


@feature
def vjp() -> Made:
    def pulled(x: Tensor) -> Tensor:
        y, pull = torch.func.vjp(torch.sin, x)
        return pull(torch.ones_like(y))[0]

    return Calling(pulled), (ramp(2, 4),)


@feature
def vmap_index() -> Made:
    class Masked(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.linear = nn.Linear(4, 4)

        def forward(self, x: Tensor) -> Tensor:
            positions = torch.arange(x.size(0), device=x.device)
            allowed = positions % 2 == 0

            def mask(row: Tensor, column: Tensor) -> Tensor:
                return (row >= column) & allowed[column]

            with TransformGetItemToIndex():
                table = torch.vmap(torch.vmap(mask, (None, 0)), (0, None))(positions, positions)
            return table.to(x.dtype) @ self.linear(x)

    return Masked(), (ramp(3, 4),)


@feature
def functional_call() -> Made:
    class Shifted(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.linear = nn.Linear(4, 4)

        def forward(self, x: Tensor) -> Tensor:
            state = {name: weight + 1 for name, weight in self.linear.named_parameters()}
            return torch.func.functional_call(self.linear, state, (x,))

    return Shifted(), (ramp(2, 4),)


@feature
def ensemble() -> Made:
    class Ensemble(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.members = nn.ModuleList(nn.Linear(4, 2) for _ in range(3))
            self.base = [nn.Linear(4, 2, device="meta")]

        def forward(self, x: Tensor) -> Tensor:
            parameters, buffers = torch.func.stack_module_state(list(self.members))

            def call(state: dict[str, Tensor], extra: dict[str, Tensor], x: Tensor) -> Tensor:
                return torch.func.functional_call(self.base[0], (state, extra), (x,))

            return torch.vmap(call, (0, 0, None))(parameters, buffers, x)

    return Ensemble(), (ramp(2, 4),)


@feature
def functionalize() -> Made:
    def changed(x: Tensor) -> Tensor:
        return x.clone().add_(1)

    return Calling(torch.func.functionalize(changed)), (ramp(2, 4),)


@feature
def cond() -> Made:
    class Choice(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.linear = nn.Linear(4, 4)

        def forward(self, x: Tensor) -> Tensor:
            return torch.cond(x.sum() > 0, lambda y: self.linear(y), lambda y: y.cos(), (x,))

    return Choice(), (ramp(2, 4),)


@feature
def while_loop() -> Made:
    def run(x: Tensor) -> Tensor:
        count = torch.zeros((), dtype=torch.int64, device=x.device)
        return looped(lambda n, y: n < 3, lambda n, y: (n + 1, y * 1.5), (count, x))[1]

    return Weighted(run), (ramp(2, 4),)


@feature
def scan() -> Made:
    def run(x: Tensor) -> Tensor:
        return scanned(lambda carry, row: (carry + row, carry * row), x[0] * 0, x)[1]

    return Weighted(run), (ramp(3, 4),)


@feature
def associative_scan() -> Made:
    def run(x: Tensor) -> Tensor:
        return scanned_in_parallel(torch.add, x, dim=0, combine_mode="generic")

    return Weighted(run), (ramp(4, 4),)


@feature
def shape_arithmetic() -> Made:
    def reshaped(x: Tensor) -> Tensor:
        rows, columns = x.shape
        padded = torch.cat([x, x.new_zeros(rows, columns)], dim=1)
        return padded.view(rows, 2, columns).flatten(1) * (columns / rows)

    return Weighted(reshaped), (ramp(2, 4),)


@feature
def checked_item() -> Made:
    def sliced(x: Tensor) -> Tensor:
        count = x.ge(-9).sum().clamp(max=3).item()
        torch._check(count >= 0)
        torch._check(count <= x.numel())
        return x.flatten().narrow(0, 0, count)

    return Weighted(sliced), (ramp(3, 4),)
