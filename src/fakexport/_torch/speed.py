"""The switch of everything that only makes a trace faster."""

from __future__ import annotations

import os

import torch

_SWITCH = "FAKEXPORT_SPEED"
_MEMO_KNOWN_ON = ("2.13.",)
"""Versions of torch on which the facts that the memo relies on were tested."""


def is_fast() -> bool:
    """Return whether the memo of operators and the fast paths around torch's passes are on.

    They are, unless the environment variable `FAKEXPORT_SPEED` is 0. Without them a trace computes everything
    as stock torch does and takes several times as long; programs are the same.
    """
    return os.environ.get(_SWITCH) != "0"


def has_memo() -> bool:
    """Return whether repeated operators are answered from memory.

    They are on the versions of torch where that is known to hold. On others a trace takes longer.
    """
    return is_fast() and torch.__version__.startswith(_MEMO_KNOWN_ON)
