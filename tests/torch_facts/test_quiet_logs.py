"""What `fakexport._torch.quiet_logs` relies on."""

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
    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return x if x.sum() > 0 else -x


class Messages(logging.Handler):
    """What reaches a handler of torch's logger."""

    def __init__(self) -> None:
        super().__init__()
        self.texts: list[str] = []

    def emit(self, record: logging.LogRecord) -> None:
        self.texts.append(record.getMessage())


@pytest.fixture
def messages():
    handler = Messages()
    log.addHandler(handler)
    yield handler.texts
    log.removeHandler(handler)


def test_torch_prints_the_graph_of_a_failed_trace(capsys) -> None:
    with pytest.raises(Exception, match="data-dependent"):
        torch.export.export(Branch(), (torch.zeros(3),))

    assert "def forward" in capsys.readouterr().err


def test_nothing_of_it_is_seen_in_the_block(capsys, caplog, messages) -> None:
    before = dict(vars(_trace))
    with torch_logs_silenced():
        log.warning("of ours")
        with pytest.raises(Exception, match="data-dependent"):
            torch.export.export(Branch(), (torch.zeros(3),))
    log.warning("later")

    assert capsys.readouterr().err.count("def forward") == 0
    assert messages == ["later"]
    assert "of ours" not in caplog.text
    assert dict(vars(_trace)) == before


def test_what_the_user_asked_for_by_level_stays(messages) -> None:
    level = log.level
    log.setLevel(logging.DEBUG)
    try:
        with torch_logs_silenced():
            log.info("asked for")
    finally:
        log.setLevel(level)

    assert messages == ["asked for"]


def test_another_thread_logs_as_before(messages) -> None:
    with torch_logs_silenced():
        thread = threading.Thread(target=log.warning, args=("of another",))
        thread.start()
        thread.join()

    assert messages == ["of another"]


def test_blocks_of_threads_overlap_in_any_order(messages) -> None:
    """The first block ends before the second one, which began in it."""
    filters = [list(handler.filters) for handler in (*log.handlers, *logging.root.handlers)]
    inside, ended = threading.Event(), threading.Event()

    def second() -> None:
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


def test_who_debugs_sees_everything(messages) -> None:
    with torch_logs_allowed(), torch_logs_silenced():
        log.warning("seen")

    assert messages == ["seen"]


def test_the_handler_of_last_resort_is_silent_in_the_block(monkeypatch, capsys) -> None:
    """torchao has no handler of its own when it says what it cannot load."""
    monkeypatch.setattr(logging.root, "handlers", [])
    with torch_logs_silenced():
        logging.getLogger("torchao").warning("while it is imported")
        logging.getLogger("of_the_user").warning("by the model")
    logging.getLogger("torchao").warning("later")

    assert capsys.readouterr().err == "by the model\nlater\n"
