"""Bytes on each of several devices, as text."""

from __future__ import annotations

from collections.abc import Mapping
from itertools import groupby

from fakexport.report.quantity import bytes_text, device_names


def device_sizes(sizes: Mapping[str, int]) -> str:
    """Return every size with its devices: `cpu 480 B, cuda:0 93.0 GiB, cuda:1..6 95.0 GiB`."""
    return ", ".join(f"{device_names(names)} {text}" for names, text in equal_rows(sizes))


def equal_rows(sizes: Mapping[str, int]) -> list[tuple[list[str], str]]:
    """Return rows of devices, neighbors by index, whose sizes read the same, and the text of that size."""
    ordered = sorted(sizes, key=_natural)
    return [(list(row), text) for text, row in groupby(ordered, key=lambda name: bytes_text(sizes[name]))]


def _natural(name: str) -> tuple[str, int]:
    """Sort `cuda:2` before `cuda:10`."""
    device_type, _, index = name.partition(":")
    return device_type, int(index) if index.isdecimal() else -1
