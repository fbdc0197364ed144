"""Whether this torch is one that fakexport expects; docs/support.md says what was run on each."""

from __future__ import annotations

import functools
import re
import warnings

import torch

from fakexport._version import NEWEST_TORCH, OLDEST_TORCH, __version__


class UntestedTorch(UserWarning):
    """The torch of this process is older or newer than those that fakexport expects."""


@functools.cache
def warn_if_untested() -> None:
    """Warn once per process where torch is older or newer than the versions in `fakexport._version`."""
    found = re.match(r"(\d+)\.(\d+)", torch.__version__)
    version = (int(found[1]), int(found[2])) if found else NEWEST_TORCH
    if not OLDEST_TORCH <= version <= NEWEST_TORCH:
        oldest, newest = (".".join(map(str, bound)) for bound in (OLDEST_TORCH, NEWEST_TORCH))
        warnings.warn(
            f"fakexport {__version__} expects torch {oldest} to {newest}, this is torch "
            f"{torch.__version__}: a report may differ from what this torch does",
            UntestedTorch,
            stacklevel=3,
        )
