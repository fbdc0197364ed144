"""The switch for all trace optimizations."""

from __future__ import annotations

import logging
import os

import torch

from fakexport.error import is_missing_for_speed, missing_in_torch

log = logging.getLogger(__name__)

_SWITCH = "FAKEXPORT_SPEED"
_is_broken = False
_MEMO_KNOWN_ON = ("2.13.", "2.14.", "2.15.")
"""torch versions on which the facts that the memo relies on are tested."""


def is_fast() -> bool:
    """Return whether the operator memo and the fast paths for torch's passes are enabled.

    They are enabled unless the environment variable `FAKEXPORT_SPEED` is 0. Without them a trace computes
    everything as stock torch does and takes several times as long; the programs are the same.
    """
    return os.environ.get(_SWITCH) != "0" and not _is_broken


def turned_off(error: BaseException) -> bool:
    """Disable memo and fast paths in this process if an error says that torch lacks a private name they use.

    Returns:
        Whether they were disabled, so that the trace can be repeated.
    """
    global _is_broken
    if not is_fast() or not is_missing_for_speed(error):
        return False
    log.warning("%s; traces take longer", missing_in_torch(error))
    _is_broken = True
    return True


def has_memo() -> bool:
    """Return whether results of repeated operators are taken from the memo.

    It is enabled on torch versions on which it has been tested. On other versions a trace takes longer.
    """
    return is_fast() and torch.__version__.startswith(_MEMO_KNOWN_ON)
