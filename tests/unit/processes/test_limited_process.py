"""`run_limited`: a process ends at a limit, and with the process that started it."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import tempfile
import threading
import time
from pathlib import Path

import pytest

from fakexport.processes import Ended, Limits, run_limited


def ran(
    folder: Path, code: str, limits: Limits, stop: threading.Event | None = None
) -> tuple[Ended, bytes, bytes]:
    """Run code as a module, whose first argument is `ALIVE`."""
    (folder / "part.py").write_text(code)
    environment = {**os.environ, "PYTHONPATH": str(folder)}
    with tempfile.TemporaryFile() as stdout, tempfile.TemporaryFile() as stderr:
        ended = run_limited(
            "part",
            ["x"],
            limits,
            stdout=stdout,
            stderr=stderr,
            environment=environment,
            folder=folder,
            stop=stop,
        )
        stdout.seek(0)
        stderr.seek(0)
        return ended, stdout.read(), stderr.read()


def test_a_process_that_ends_by_itself(tmp_path):
    code = "import sys, os; print(sys.argv[2], os.getcwd()); sys.exit(3)"

    ended, stdout, _ = ran(tmp_path, code, Limits(60))

    assert (ended.code, ended.limit) == (3, None)
    assert stdout.decode().split() == ["x", str(tmp_path)]
    assert ended.peak_bytes > 2**20


@pytest.mark.parametrize(
    ("code", "limits", "limit"),
    [
        ("import time; time.sleep(100)", Limits(0.2), "seconds"),
        ("import time; held = b'x' * 2**28; time.sleep(100)", Limits(60, 2**27), "bytes"),
    ],
)
def test_a_process_is_killed_at_a_limit(tmp_path, code, limits, limit):
    ended, _, _ = ran(tmp_path, code, limits)

    assert (ended.code, ended.limit) == (None, limit)
    assert ended.seconds < 60


def test_a_signal_is_a_negative_code(tmp_path):
    ended, _, _ = ran(tmp_path, "import os; os.abort()", Limits(60))

    assert (ended.code, ended.limit) == (-signal.SIGABRT, None)


def test_another_thread_stops_it(tmp_path):
    stop = threading.Event()
    threading.Timer(0.2, stop.set).start()

    ended, _, _ = ran(tmp_path, "import time; time.sleep(100)", Limits(60), stop)

    assert ended.limit == "stopped"


def test_it_ends_when_its_parent_is_killed(tmp_path):
    (tmp_path / "part.py").write_text(
        "import os, sys, time\n"
        "from fakexport.processes import end_with_parent\n"
        "end_with_parent(int(sys.argv[1]))\n"
        "open('pid', 'w').write(str(os.getpid()))\n"
        "time.sleep(100)\n"
    )
    code = (
        "import sys\n"
        "from fakexport.processes import Limits, run_limited\n"
        "run_limited('part', [], Limits(60), stdout=sys.stdout.buffer, stderr=sys.stderr.buffer)\n"
    )
    environment = {**os.environ, "PYTHONPATH": str(tmp_path)}
    parent = subprocess.Popen([sys.executable, "-c", code], cwd=tmp_path, env=environment)
    written = tmp_path / "pid"
    _wait(lambda: written.exists() and written.read_text())

    parent.kill()
    parent.wait()

    pid = int(written.read_text())
    _wait(lambda: not Path(f"/proc/{pid}/cmdline").exists() or not Path(f"/proc/{pid}/cmdline").read_bytes())


def _wait(is_so) -> None:
    end = time.monotonic() + 60
    while not is_so():
        assert time.monotonic() < end
        time.sleep(0.02)
