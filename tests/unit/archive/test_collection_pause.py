"""What is read makes objects by the million and drops none: Python's collector does not look through them."""

from __future__ import annotations

import gc
import json
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import nn

import fakexport as fe
from fakexport.archive import describe
from fakexport.archive.loading import load_archive
from fakexport.archive.method_records import WEIGHTS_CONFIG
from fakexport.container.contents import FRAME_RECORDS
from fakexport.container.reader import read_container
from fakexport.container.writer import write_container
from fakexport.documents.document_error import DocumentError
from fakexport.documents.json_text import parse_json


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


@pytest.fixture(scope="module")
def archives(tmp_path_factory: pytest.TempPathFactory) -> list[Path]:
    """What torch saved of a fake program, with hundreds or thousands of weights that nothing uses."""
    folder = tmp_path_factory.mktemp("many")
    program = fe.export(lambda: nn.Linear(4, 2), (torch.ones(3, 4),))
    program._example_inputs = None
    torch.export.save(program, folder / "fake.pt2")
    with read_container(folder / "fake.pt2") as container:
        records = {name: container.record(name) for name in container.names if name not in FRAME_RECORDS}
    config = json.loads(records[WEIGHTS_CONFIG])["config"]
    paths = []
    for count in (300, 6000):
        weights = {**config, **{f"w{number}": config["bias"] for number in range(count)}}
        paths.append(folder / f"{count}.pt2")
        text = json.dumps({"config": weights}).encode()
        write_container(paths[-1], {**records, WEIGHTS_CONFIG: text}, folder_name="fake")
    return paths


@pytest.mark.parametrize("read", [describe, load_archive])
def test_more_weights_are_not_looked_through_more_often(
    read: Callable[..., Any], archives: list[Path]
) -> None:
    read(archives[0])  # What is made once.
    counts = []
    for path in archives:
        with collections() as found:
            read(path)
        counts.append(len(found))

    assert counts[1] <= counts[0] + 10
    assert gc.isenabled()


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
