"""Warnings about weights that are bound nonetheless."""

from __future__ import annotations

import sys
import warnings
from collections.abc import Collection, Iterable
from pathlib import Path

from fakexport.diagnostics import escaped
from fakexport.weights.name_folding import fold_names
from fakexport.weights.weights_report import WeightFinding

_SHOWN = 3


class WeightsWarning(UserWarning):
    """Weights were bound, but something is suspicious: FE704, FE706, what was not read or run. One line."""


def warn_of(checkpoint: str, findings: Iterable[WeightFinding]) -> None:
    """Warn of unexpected keys (FE704), and of NaN and infinity (FE706); skip the rest.

    Warns:
        WeightsWarning: one for each, at the line that called fakexport.
    """
    for finding in findings:
        count = len(finding.names)
        if finding.code == "FE704":
            entries = "an entry" if count == 1 else f"{count:,} entries"
            fault = f"{checkpoint} has {entries} that the model does not use"
        elif finding.code == "FE706":
            fault = f"{'a weight has' if count == 1 else f'{count:,} weights have'} NaN or infinity"
        else:
            continue
        folded = fold_names(finding.names)
        names = ", ".join([*folded[:_SHOWN], *(["..."] if len(folded) > _SHOWN else [])])
        text = escaped(f"{finding.code}: {fault}: {names}")
        warnings.warn(WeightsWarning(text), stacklevel=caller_level())


def warn_of_hooks(hooks: Collection[str]) -> None:
    """Warn of what the model's own `load_state_dict` runs, and `bind` does not.

    Warns:
        WeightsWarning: if there are any, at the line that called fakexport.
    """
    if hooks:
        shown = ", ".join([*list(hooks)[:_SHOWN], *(["..."] if len(hooks) > _SHOWN else [])])
        text = f"`load_state_dict` of the model also runs {shown}, and `bind` does not: weights may differ"
        warnings.warn(WeightsWarning(escaped(text)), stacklevel=caller_level())


def warn_of_index(file: Path, index: Path) -> None:
    """Warn that a folder has a file with all weights, which is read, and an index of shards, which is not.

    Warns:
        WeightsWarning: at the line that called fakexport.
    """
    text = f"{file.parent} has {file.name} and {index.name}: {file.name} is read, as transformers does"
    warnings.warn(WeightsWarning(escaped(text)), stacklevel=caller_level())


def caller_level() -> int:
    """Return the stack level of the caller of fakexport; Python 3.12 has `skip_file_prefixes` for that."""
    level, frame = 1, sys._getframe(1)
    while frame.f_back is not None and frame.f_globals.get("__name__", "").startswith("fakexport."):
        level, frame = level + 1, frame.f_back
    return level
