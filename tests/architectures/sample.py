"""Which of hundreds of alike tests run when."""

from __future__ import annotations

from collections.abc import Collection, Iterable, Iterator
from typing import Any

import pytest

__all__ = ["sampled"]

_EVERY = 8


def sampled(
    cases: Iterable[Any], *, in_every_run: Collection[str] = (), in_ci: Collection[str] = ()
) -> list[Any]:
    """The cases as parameters: some in `make test`, some and every eighth in CI, the rest in `make test-all`.

    Args:
        cases: Anything whose text is its id. With `--dist loadgroup` all tests of a case run in one process.
        in_every_run: Texts of those that run in `make test`.
        in_ci: Texts of those that run in CI, whether they are an eighth one or not.
    """

    def marks(index: int, name: str) -> Iterator[pytest.MarkDecorator]:
        yield pytest.mark.xdist_group(f"case {name}")
        if name not in in_every_run:
            yield pytest.mark.slow if name in in_ci or index % _EVERY == 0 else pytest.mark.exhaustive

    return [
        pytest.param(case, id=str(case), marks=[*marks(index, str(case))]) for index, case in enumerate(cases)
    ]
