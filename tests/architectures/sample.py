"""Which of hundreds of alike tests run when."""

from __future__ import annotations

from collections.abc import Collection, Iterable
from typing import Any

import pytest

__all__ = ["sampled"]

_EVERY = 8


def sampled(cases: Iterable[Any], *, in_every_run: Collection[str] = ()) -> list[Any]:
    """The cases as parameters: some in `make test`, every eighth in CI, the rest in `make test-all`.

    Args:
        cases: Anything whose text is its id.
        in_every_run: Texts of those that run in `make test`.
    """
    return [
        pytest.param(case, id=str(case), marks=() if str(case) in in_every_run else _marks(index))
        for index, case in enumerate(cases)
    ]


def _marks(index: int) -> tuple[pytest.MarkDecorator, ...]:
    return (pytest.mark.slow if index % _EVERY == 0 else pytest.mark.exhaustive,)
