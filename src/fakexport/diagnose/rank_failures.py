"""What an error of `forward` is likely to come from, where only a rank of the model is traced."""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator
from dataclasses import replace

from fakexport.diagnostics import Diagnostic, Fix

_OF_SIZES = re.compile(r"\b(?:sizes?|shapes?|normalized_shape|dimensions?|dim|broadcast|split_sizes)\b", re.I)


def in_rank(found: Iterable[Diagnostic], ranks: int) -> Iterator[Diagnostic]:
    """Yield what was found, with a fix of its own for a size that does not fit on a rank.

    Args:
        found: Why a rank has no program.
        ranks: How many there are.
    """
    for each in found:
        if each.code != "FE202" or not any(map(_OF_SIZES.search, each.notes)):
            yield each
            continue
        yield replace(
            each,
            notes=(
                *each.notes,
                f"each of {ranks} ranks has a part of the heads and features that the plan shards",
            ),
            fix=Fix(
                "where the line has a size of the whole model, such as the number of heads, read it off the "
                "tensor: `view(*x.shape[:-1], -1, head_dim)`; or leave the module out of the plan "
                "(--parallel tp=N,plan=FILE.json with null for it)"
            ),
        )
