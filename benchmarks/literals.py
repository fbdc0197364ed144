"""A model that creates tensors on the device of its input, in all ways that are traced differently."""

import torch
from torch import nn


class Literals(nn.Module):
    def __init__(self):
        super().__init__()
        self.linear = nn.Linear(4, 4)
        self.register_buffer("table", torch.arange(4.0), persistent=False)

    def forward(self, x):
        a = torch.tensor([1.0, 2.0, 3.0, 4.0], device=x.device)
        b = torch.as_tensor([4.0, 5.0, 6.0, 7.0], device=x.device)
        c = x.new_tensor([7.0, 8.0, 9.0, 1.0])
        empty = torch.tensor([], device=x.device)
        half = torch.tensor(2.5, device=x.device, dtype=torch.float16)
        moved = torch.tensor([5, 6]).to(x.device)
        cast = torch.tensor([1, 2, 3], device=x.device).to(torch.float32)
        number = (torch.tensor([2], device=x.device) + 1).item()
        zeros = torch.tensor([1.0]).new_zeros(4, device=x.device) + torch.zeros_like(a)
        total = moved.sum() + cast.sum() + empty.sum()
        return self.linear(x) * a + b + c + half + total + number + zeros + self.table


def factory():
    return Literals(), (torch.randn(2, 4),)
