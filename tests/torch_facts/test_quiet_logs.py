"""What `quiet_logs` relies on: where torch and torchao log and print."""

from __future__ import annotations

import logging
import threading
from contextlib import ExitStack

import pytest
import torch
from torch import nn
from torch.export import _trace

from fakexport._torch.quiet_logs import torch_logs_allowed, torch_logs_silenced

log = logging.getLogger("torch.fx.experimental.symbolic_shapes")


class Branch(nn.Module):
    def forward(self, x):
        return x if x.sum() > 0 else -x


class Messages(logging.Handler):
    def __init__(self):
        super().__init__()
        self.texts = []

    def emit(self, record):
        self.texts.append(record.getMessage())


@pytest.fixture
def messages():
    """What reaches a handler of torch's logger."""
    handler = Messages()
    log.addHandler(handler)
    yield handler.texts
    log.removeHandler(handler)


def fails():
    with pytest.raises(Exception, match="data-dependent"):
        torch.export.export(Branch(), (torch.zeros(3),))


def test_torch_prints_the_graph_of_a_failed_trace_and_nothing_of_it_is_seen_in_the_block(capsys, messages):
    before = dict(vars(_trace))
    fails()
    assert "def forward" in capsys.readouterr().err
    messages.clear()

    with torch_logs_silenced():
        log.warning("of ours")
        fails()
        thread = threading.Thread(target=log.warning, args=("of another",))
        thread.start()
        thread.join()
    log.warning("later")

    assert "def forward" not in capsys.readouterr().err
    assert messages == ["of another", "later"]
    assert dict(vars(_trace)) == before


def test_what_the_user_asked_for_by_level_or_for_debugging_stays(messages):
    level = log.level
    log.setLevel(logging.DEBUG)
    try:
        with torch_logs_silenced():
            log.info("asked for")
        with torch_logs_allowed(), torch_logs_silenced():
            log.warning("seen")
    finally:
        log.setLevel(level)

    assert messages == ["asked for", "seen"]


def test_blocks_of_threads_overlap_in_any_order(messages):
    """The first block ends before the second one, which began in it."""
    filters = [list(handler.filters) for handler in (*log.handlers, *logging.root.handlers)]
    inside, ended = threading.Event(), threading.Event()

    def second():
        with torch_logs_silenced():
            inside.set()
            ended.wait(30)
            log.warning("of the second")

    thread = threading.Thread(target=second)
    with ExitStack() as first:
        first.enter_context(torch_logs_silenced())
        thread.start()
        inside.wait(30)
    log.warning("of the first, later")
    ended.set()
    thread.join()

    assert messages == ["of the first, later"]
    assert [list(handler.filters) for handler in (*log.handlers, *logging.root.handlers)] == filters
    assert "print" not in vars(_trace)


def test_the_handler_of_last_resort_is_silent_in_the_block(monkeypatch, capsys):
    """torchao has no handler of its own when it says what it cannot load."""
    monkeypatch.setattr(logging.root, "handlers", [])
    with torch_logs_silenced():
        logging.getLogger("torchao").warning("while it is imported")
        logging.getLogger("of_the_user").warning("by the model")
    logging.getLogger("torchao").warning("later")

    assert capsys.readouterr().err == "by the model\nlater\n"
