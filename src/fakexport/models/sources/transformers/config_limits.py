"""Limits for configs. Without them, a tiny config could describe a billion layers or refer to code on the
hub.

Even a fake model needs time and memory for each module. All published models are far below the limits.
"""

from __future__ import annotations

import re
import threading
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from typing import Any

from torch import nn
from torch.nn.modules.module import register_module_module_registration_hook

from fakexport.models.sources.source_error import SourceError

MOST_SIZE = 1 << 26
MOST_LAYERS = 2048
MOST_MODULES = 100_000
_MOST_VALUES = 200_000
_DEEPEST = 16

_COUNTS_LAYERS = re.compile(r"layers?|blocks?|depths?|stages?|repeats?|stacks?|flows?|loops?", re.IGNORECASE)
_NO_COUNT = re.compile(r"size|dim|length|width|position|context|rank|chunk|ids?|max|min", re.IGNORECASE)


def check_settings(settings: Mapping[str, Any], place: str) -> None:
    """Reject a config with a value that exceeds its limit."""
    count = 0
    pending: list[tuple[str, Any, int]] = [("", settings, 0)]
    while pending:
        field, value, depth = pending.pop()
        count += 1
        if depth > _DEEPEST:
            raise SourceError(f"{place}: `{field[:200]}` is nested deeper than {_DEEPEST} levels")
        if count > _MOST_VALUES:
            raise SourceError(f"{place}: the config has more than {_MOST_VALUES:,} values")
        if isinstance(value, dict):
            inner = ((f"{field}.{key}" if field else str(key), part) for key, part in value.items())
            pending += [(name, part, depth + 1) for name, part in inner]
        elif isinstance(value, list):
            pending += [(field, part, depth + 1) for part in value]
        else:
            _check_value(field, value, place)


def _check_value(field: str, value: Any, place: str) -> None:
    name = field.rpartition(".")[2]
    if isinstance(value, int):
        limit = MOST_LAYERS if _counts_layers(name) else MOST_SIZE
        if abs(value) > limit:
            raise SourceError(f"{place}: `{field[:200]}` is more than the limit of {limit:,}")
    elif isinstance(value, str) and "/" in value and "_implementation" in name:
        raise SourceError(
            f"{place}: `{field[:200]}` refers to code on the hub, which fakexport does not run: "
            "use eager or sdpa"
        )


def _counts_layers(name: str) -> bool:
    words = name.split("_")
    return any(map(_COUNTS_LAYERS.fullmatch, words)) and not any(map(_NO_COUNT.fullmatch, words))


@contextmanager
def nothing_downloaded() -> Iterator[None]:
    """Prevent transformers from downloading a backbone or kernel that a config refers to."""
    from huggingface_hub import constants

    before, constants.HF_HUB_OFFLINE = constants.HF_HUB_OFFLINE, True
    try:
        yield
    finally:
        constants.HF_HUB_OFFLINE = before


@contextmanager
def within_limits(spec: str) -> Iterator[None]:
    """Enter a context in which a model can create at most `MOST_MODULES` modules and download nothing."""
    left, thread = MOST_MODULES, threading.get_ident()

    def count(module: nn.Module, name: str, part: nn.Module | None) -> None:
        nonlocal left
        left -= threading.get_ident() == thread
        if left < 0:
            raise SourceError(f"{spec}: the config describes more than {MOST_MODULES:,} modules")

    handle = register_module_module_registration_hook(count)
    try:
        with nothing_downloaded():
            yield
    finally:
        handle.remove()
