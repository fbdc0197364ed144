"""Calls in forked processes: what comes back, and what does not."""

from __future__ import annotations

import os
import signal
import sys
import threading
import time
import warnings
from itertools import pairwise
from pathlib import Path

import pytest

from fakexport.files import FileWriteError
from fakexport.files.processes import NoAnswer, run_forked
from tests.forked import run_python

pytestmark = pytest.mark.skipif(sys.platform != "linux", reason="forks are used on Linux only")


def called(*functions, jobs=2, on_message=lambda index, message: None):
    return run_forked(functions, jobs=jobs, on_message=on_message)


def test_messages_and_answers_arrive_in_the_order_of_the_calls():
    found = []

    def call(name, seconds):
        def answer(send):
            send(f"{name} begins")
            time.sleep(seconds)
            send(f"{name} ends")
            return name

        return answer

    answers = called(
        call("a", 0.3), call("b", 0), call("c", 0), on_message=lambda *received: found.append(received)
    )

    assert answers == ["a", "b", "c"]
    assert found == [(i, f"{name} {what}") for i, name in enumerate("abc") for what in ("begins", "ends")]


def test_as_many_run_at_a_time_as_asked():
    starts = called(*[lambda send: (time.monotonic(), time.sleep(0.2), time.monotonic())] * 3, jobs=1)

    assert all(first[2] <= second[0] for first, second in pairwise(starts))


ENDINGS = {
    "exit code 0": lambda: os._exit(0),
    "exit code 3": lambda: os._exit(3),
    "killed by SIGKILL": lambda: os.kill(os.getpid(), signal.SIGKILL),
    "killed by SIGUSR1": lambda: os.kill(os.getpid(), signal.SIGUSR1),
    "SystemExit: 0": lambda: sys.exit(0),
}


@pytest.mark.parametrize("reason", ENDINGS)
def test_a_process_that_ends_by_itself_has_no_answer(reason, capfd):
    def call(send):
        print("first")
        os.write(2, b"last\n")
        sys.stdout.flush()
        ENDINGS[reason]()

    (answer,) = called(call)

    assert answer == NoAnswer(reason, ("first", "last"))
    assert (capfd.readouterr()) == ("first\n", "last\n")


def test_a_process_that_closes_what_it_answers_with_has_no_answer():
    def call(send):
        os.closerange(3, 256)
        time.sleep(60)

    (answer,) = called(call)

    assert isinstance(answer, NoAnswer)


def is_gone(group):
    """Whether a process group has no process, which takes a moment after they are killed."""
    for _ in range(200):
        try:
            os.killpg(group, 0)
        except ProcessLookupError:
            return True
        time.sleep(0.05)
    return False


def test_nothing_of_a_process_is_left():
    def call(send):
        threading.Thread(target=time.sleep, args=(60,)).start()
        signal.signal(signal.SIGTERM, signal.SIG_IGN)
        if os.fork() == 0:
            time.sleep(60)
        return os.getpgrp()

    started = time.monotonic()
    (group,) = called(call)

    assert time.monotonic() - started < 20
    assert is_gone(group)


def test_output_is_written_where_this_process_writes(capsys):
    called(lambda send: (print("out"), print("error", file=sys.stderr)))

    assert capsys.readouterr() == ("out\n", "error\n")


def test_an_exception_keeps_its_type_text_and_attributes():
    def writes(send):
        raise FileWriteError("model.pt2", PermissionError(13, "denied"))

    with pytest.raises(FileWriteError, match=r"^cannot write model\.pt2: denied$") as caught:
        called(writes)

    assert (caught.value.errno, caught.value.filename) == (13, "model.pt2")
    assert "in writes" in str(caught.value.__cause__)


class Unusual(ValueError):
    """Cannot be pickled: `__init__` takes something else than `args` has, and it holds a function."""

    def __init__(self, left, right):
        super().__init__(f"{left} and {right}")
        self.left, self.function = left, lambda: right


def test_an_exception_that_cannot_be_pickled_is_raised_too():
    def call(send):
        raise Unusual("a", "b")

    with pytest.raises(Unusual, match=r"^a and b$") as caught:
        called(call)

    assert caught.value.left == "a"


def test_an_exception_of_an_unknown_class_is_one_of_its_base():
    def call(send):
        class Local(KeyError):
            pass

        raise Local("name")

    with pytest.raises(KeyError, match=r"'name'") as caught:
        called(call)

    assert type(caught.value) is KeyError


def test_the_first_exception_in_the_order_of_the_calls_is_raised():
    def later(send):
        time.sleep(0.3)
        raise ValueError("first call")

    def sooner(send):
        raise ValueError("second call")

    with pytest.raises(ValueError, match="first call"):
        called(later, sooner)


def test_a_warning_is_one_here():
    class Local(FutureWarning):
        pass

    def call(send):
        warnings.simplefilter("always")
        warnings.warn("of a known class", UserWarning, stacklevel=1)
        warnings.warn("of an unknown one", Local, stacklevel=1)

    with pytest.warns() as caught:
        called(call)

    assert [(w.category, str(w.message)) for w in caught] == [
        (UserWarning, "of a known class"),
        (FutureWarning, "of an unknown one"),
    ]
    assert {Path(w.filename).name for w in caught} == {Path(__file__).name}


def test_processes_end_with_a_call_that_is_left():
    def call(send):
        send(os.getpid())
        time.sleep(60)

    def interrupt(index, pid):
        raise KeyboardInterrupt(pid)

    with pytest.raises(KeyboardInterrupt) as caught:
        called(call, on_message=interrupt)

    with pytest.raises(ProcessLookupError):
        os.kill(caught.value.args[0], 0)


def test_processes_end_with_one_that_is_killed():
    done = run_python(
        "import os, signal, time\n"
        "from fakexport.files.processes import run_forked\n"
        "def call(send): send(os.getpid()); time.sleep(60)\n"
        "def told(index, pid): print(pid, flush=True); os.kill(os.getpid(), signal.SIGKILL)\n"
        "run_forked([call], jobs=1, on_message=told)\n"
    )

    assert is_gone(int(done.stdout))


def test_a_process_can_have_processes_of_its_own():
    def outer(send):
        return called(lambda send: "inner", on_message=lambda index, message: send(message))

    assert called(outer) == [["inner"]]
