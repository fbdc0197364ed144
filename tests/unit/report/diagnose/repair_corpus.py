"""Failing models of many kinds, what the printed fix says, and the same model with the fix followed."""

from __future__ import annotations

import tomllib
from dataclasses import dataclass
from pathlib import Path

HEAD = """import math

import numpy as np
import torch
import torch.nn.functional as F
from torch import nn


"""
MODEL = """class Model(nn.Module):
    def __init__(self):
        super().__init__()
{init}

    def forward(self, {signature}):
{body}


def factory():
    return Model(), ({args},)
"""


@dataclass(frozen=True)
class Failing:
    """A model that fails, and its repair.

    Args:
        code: The rule.
        fix: A part of the printed fix; `{file}` is the name of the file.
        before, after: The body of `forward`, as it fails and with the fix followed.
        args: Example inputs.
        signature, init: Of `forward`; the body of the constructor.
        init_after: The constructor with the fix followed, where the fix is there.
        is_same: Whether both compute the same in eager mode; not where the failing one raises there as well.
        target: What it is checked for.
        problems: Codes of what is found after it.
        until: The first torch that exports it as it is.
    """

    code: str
    fix: str
    before: str
    after: str
    args: str = "torch.randn(4)"
    signature: str = "x"
    init: str = "pass"
    init_after: str | None = None
    is_same: bool = True
    target: str = "cpu"
    problems: tuple[str, ...] = ()
    until: str = "9"

    def source(self, *, repaired: bool) -> str:
        init = self.init if not repaired or self.init_after is None else self.init_after
        body = self.after if repaired else self.before
        return HEAD + MODEL.format(
            init=_indented(init), signature=self.signature, body=_indented(body), args=self.args
        )


def _indented(text: str) -> str:
    return "\n".join(f"        {line}" for line in text.strip().splitlines())


CORPUS = {
    name: Failing(**{key: tuple(value) if isinstance(value, list) else value for key, value in entry.items()})
    for name, entry in tomllib.loads(Path(__file__).with_suffix(".toml").read_text("utf-8")).items()
}
