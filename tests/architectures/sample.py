"""Which of hundreds of alike tests run when."""

from __future__ import annotations

import math
import zlib
from collections.abc import Collection, Iterable, Iterator
from typing import Any

import pytest

__all__ = ["sampled"]

_EVERY = 32


def sampled(
    cases: Iterable[Any], *, in_every_run: Collection[str] = (), in_ci: Collection[str] = ()
) -> list[Any]:
    """The cases as parameters: some in `make test`, some and a sample in CI, the rest in `make test-all`.

    Args:
        cases: Anything whose text is its id. With `--dist loadgroup` all tests of a case run in one process.
        in_every_run: Texts of those that run in `make test`.
        in_ci: Texts of those that run in CI, whether they are of the sample or not.
    """
    named = {str(case): case for case in cases}
    slow = {*_a_sample(named), *in_ci}

    def marks(name: str) -> Iterator[pytest.MarkDecorator]:
        yield pytest.mark.xdist_group(f"case {name}")
        if name not in in_every_run:
            yield pytest.mark.slow if name in slow else pytest.mark.exhaustive

    return [pytest.param(case, id=name, marks=[*marks(name)]) for name, case in named.items()]


def _a_sample(names: Collection[str]) -> list[str]:
    """The names of the lowest checksums, in order: a new one moves at most one other in or out."""
    chosen = sorted(names, key=lambda name: zlib.crc32(name.encode()))[: math.ceil(len(names) / _EVERY)]
    return sorted(chosen)
