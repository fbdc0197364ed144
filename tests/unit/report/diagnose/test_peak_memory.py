"""Weights and runs that are too large for a device: FE503, FE506, and what is left to `fakexport plan`."""

import pytest
import torch
from torch import nn
from torch.nn import functional

import fakexport as fe

GIB = 2**30


def codes(factory, target="H100", **options):
    return [diagnostic.code for diagnostic in fe.check(factory, target=target, **options).diagnostics]


class Attention(nn.Module):
    """Its scores are the peak where the kernel computes them: no value of the program shows them."""

    def forward(self, query, key, value):
        return functional.scaled_dot_product_attention(query, key, value)


def attention(tokens):
    def factory():
        return Attention(), tuple(torch.zeros(1, 64, tokens, 64) for _ in range(3))

    return factory


class Doubled(nn.Module):
    def __init__(self, gib):
        super().__init__()
        self.weight = nn.Parameter(torch.empty(gib * GIB // 4))

    def forward(self, x):
        return self.weight * x


@pytest.mark.parametrize(("gib", "expected"), [(16, []), (48, ["FE506"]), (96, ["FE503"])])
def test_weights_and_peak_have_different_codes(gib, expected):
    assert codes(lambda: (Doubled(gib), (torch.zeros(()),))) == expected


def test_peak_includes_memory_inside_operators():
    """Scores of a math kernel, say: the report must not depend on the quick estimate."""
    planned = fe.plan(attention(16384), target="T4").points[0]

    found = codes(attention(16384), target="T4")

    assert ("FE506" in found) == (planned.fit == "does not fit")


@pytest.mark.parametrize("target", ["cpu", "H100"])
def test_unbacked_sizes_are_not_reported_as_peak_memory(target):
    class Chosen(nn.Module):
        def forward(self, x):
            return torch.nonzero(x)

    assert codes(lambda: (Chosen(), (torch.zeros(8, 8),)), target, dynamic_shapes="auto") == []
