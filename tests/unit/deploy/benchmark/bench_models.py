"""Models of the benchmark's tests, each with one trait. Imported by its path, in processes of its own too."""

import os
import signal
import time

import torch
from torch import nn


class Mlp(nn.Module):
    def __init__(self):
        super().__init__()
        self.layers = nn.Sequential(nn.Linear(8, 16), nn.ReLU(), nn.Dropout(0.5), nn.Linear(16, 4))

    def forward(self, x, scale):
        return {"y": self.layers(x) * scale, "sum": x.sum(-1)}


def mlp():
    return Mlp(), (torch.randn(6, 8),), {"scale": torch.randn(4)}


class SizeBurnedIn(nn.Module):
    def forward(self, x):
        return x + int(x.shape[0])  # a constant to any tracer


def size_burned_in():
    return SizeBurnedIn().eval(), (torch.randn(6, 8),)


class Branch(nn.Module):
    def forward(self, x):
        return x * 2 if x.sum() > 0 else x - 1


def branch():
    return Branch().eval(), (torch.ones(4),)


class DrawnBesides(nn.Module):
    """Has numbers that no state_dict has."""

    def __init__(self):
        super().__init__()
        self.linear = nn.Linear(4, 4)
        self.factor = torch.randn(4)

    def forward(self, x):
        return self.linear(x) * self.factor


def drawn_besides():
    return DrawnBesides().eval(), (torch.randn(3, 4),)


class Counter(nn.Module):
    """Has a state, and writes into its input."""

    def __init__(self):
        super().__init__()
        self.register_buffer("calls", torch.zeros(()))

    def forward(self, x):
        self.calls.add_(1)
        x.mul_(2)
        return x + self.calls


def counter():
    return Counter().eval(), (torch.randn(3, 4),)


class Nameless(nn.Module):
    def forward(self, *x):
        return x[0] - x[1]


def nameless():
    return Nameless().eval(), (torch.randn(3, 4), torch.randn(3, 4))


class Killed(nn.Module):
    def forward(self, x):
        if torch.jit.is_tracing():
            os.kill(os.getpid(), signal.SIGKILL)
        return x + 1


def killed():
    return Killed().eval(), (torch.randn(2),)


class Slow(nn.Module):
    def forward(self, x):
        if torch.jit.is_tracing():
            time.sleep(600)
        return x + 1


def slow():
    return Slow().eval(), (torch.randn(2),)


def fails():
    class Fails(nn.Module):
        def forward(self, x):
            raise RuntimeError("no such luck")

    return Fails().eval(), (torch.randn(2),)


def without_inputs():
    return nn.Linear(2, 2).eval()


class Word:
    pass


def word():
    class Takes(nn.Module):
        def forward(self, x, word):
            return x + 1

    return Takes().eval(), (torch.ones(2), Word())
