"""Weights that a program had and that are missing from its archive."""

from __future__ import annotations

import warnings
from collections.abc import Sequence

from fakexport.weights import caller_level


class WeightsLeftBehind(UserWarning):
    """An archive is written without the weights that its program had before it was retargeted."""


def warn_of_weights(path: str, names: Sequence[str]) -> None:
    """Warn, at the line that called fakexport, of weights that are left out.

    Args:
        path: The archive.
        names: Names of the weights.
    Warns:
        WeightsLeftBehind: there are some.
    """
    if names:
        what = f"{len(names):,} weights, such as {names[0]}, were" if len(names) > 1 else f"{names[0]} was"
        text = (
            f"{path} has no weights: {what} left out, since the new devices are not on this machine; "
            "bind the checkpoint again on a machine that has them"
        )
        warnings.warn(WeightsLeftBehind(text), stacklevel=caller_level())
