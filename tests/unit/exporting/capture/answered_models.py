"""Models that ask what only data decide, and how they are exported with an answer."""

from __future__ import annotations

import runpy

import torch

import fakexport as fe

HEAD = """import torch
from torch import nn


class Block(nn.Module):
    def __init__(self):
        super().__init__()
        self.linear = nn.Linear(4, 4)

    def forward(self, x):
        return self.linear(x)


class Model(nn.Module):
    def __init__(self):
        super().__init__()
        self.blocks = nn.ModuleList(Block() for _ in range(6))

    def forward(self, x):
"""
TAIL = """

def factory():
    return Model(), (torch.ones(2, 4),)
"""
FIRST = HEAD.count("\n") + 1


def exported(path, *assumed, **options):
    return fe.export(f"{path}:factory", assume=assumed, **options)


def eager(path):
    torch.manual_seed(0)
    return runpy.run_path(str(path))["factory"]()[0]
