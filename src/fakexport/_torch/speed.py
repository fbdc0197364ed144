"""The switch of everything that only makes a trace faster."""

from __future__ import annotations

import os

_SWITCH = "FAKEXPORT_SPEED"


def is_fast() -> bool:
    """Return whether the memo of operators and the fast paths around torch's passes are on.

    They are, unless the environment variable `FAKEXPORT_SPEED` is 0. Without them a trace computes everything
    as stock torch does and takes several times as long; programs are the same.
    """
    return os.environ.get(_SWITCH) != "0"
