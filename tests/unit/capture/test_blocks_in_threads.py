"""Another thread runs blocks of the class of which one is recorded: neither sees anything of the other."""

from __future__ import annotations

import sys
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager

import pytest
import torch

from fakexport.capture.block_reuse import reuse

pytest.importorskip("transformers.cache_utils")

from tests.unit.capture.reused_blocks import DEPTH, check
from tests.unit.capture.test_cache_layers import Model, own, replayed


def by_type(block, x, cache):
    """Keeps its number, and finds out whether it is one."""
    block.note = block.layer_idx
    return x * (0.5 if type(block.layer_idx) is int else 2) + float(block.layer_idx)


@pytest.fixture
def while_recorded(monkeypatch):
    """Runs a function in another thread whenever a block is recorded; returns what it returned."""
    found = []
    stock = reuse.watching

    def install(function):
        @contextmanager
        def watching(*args, **kwargs):
            with stock(*args, **kwargs):
                found.append(worker.submit(function).result())
                yield

        monkeypatch.setattr(reuse, "watching", watching)
        return found

    with ThreadPoolExecutor(1) as worker:
        yield install


def test_another_thread_runs_blocks_of_the_class_that_is_recorded(while_recorded, reports):
    other = Model(by_type).eval()
    args = torch.full((1, 1, 1, 8), 0.1), [torch.full((1, 1, 3, 8), 0.1)] * DEPTH
    expected = other(*args)[0]
    assert expected.isfinite().all()

    found = while_recorded(lambda: other(*args)[0])
    check(Model(own).eval(), args)

    assert found
    assert all(torch.equal(one, expected) for one in found)
    assert [block.note for block in other.blocks] == [*range(DEPTH)]
    assert {type(block.note) for block in other.blocks} == {int}
    if sys.version_info < (3, 12):  # From then on, code of other threads counts as the block's own.
        assert replayed(reports)[0][1] > 0, "the number that the other thread keeps is not that of the trace"
