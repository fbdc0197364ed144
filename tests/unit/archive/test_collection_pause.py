"""Parsing makes objects by the million and drops none: Python's collector does not look through them."""

from __future__ import annotations

import gc
from collections.abc import Iterator
from contextlib import contextmanager

import pytest

from fakexport.files.documents.document_error import DocumentError
from fakexport.files.documents.parsing import parse_json


@contextmanager
def collections() -> Iterator[list[str]]:
    """One entry for each run of the collector in the block."""
    found: list[str] = []

    def note(phase: str, info: dict[str, int]) -> None:
        if phase == "start":
            found.append(phase)

    gc.callbacks.append(note)
    try:
        yield found
    finally:
        gc.callbacks.remove(note)


def test_a_document_is_parsed_without_the_collector_which_runs_again_afterwards() -> None:
    text = b"[" + b",".join([b'{"a":[]}'] * 20_000) + b"]"
    gc.collect()
    with collections() as found:
        parsed = parse_json(text)
        at_the_end = len(found)
    with pytest.raises(DocumentError):
        parse_json(b"[" + text)

    assert at_the_end <= 1  # That which was due when the parser was done.
    assert len(parsed) == 20_000
    assert gc.isenabled()
