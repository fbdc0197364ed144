"""`run_limited`: a process ends at a limit, and with the process that started it, however it is started."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import tempfile
import threading
import time
from pathlib import Path

import pytest

from fakexport.files.processes import Ended, Limits, NoWarmStart, WarmStart, run_limited

pytestmark = pytest.mark.usefixtures("path")
# Imported before the fork. Tells what one run could leave to the next, and what differs from a new process.
_KEPT = """
import random, os
changed = []
def state():
    return [changed, os.environ.get("CHANGED"), os.getcwd(), random.random(), os.getsid(0) == os.getpid()]
"""


@pytest.fixture
def path(tmp_path, monkeypatch):
    (tmp_path / "kept.py").write_text(_KEPT)
    (tmp_path / "threaded.py").write_text(
        "import threading, time\nthreading.Thread(target=time.sleep, args=(9,), daemon=True).start()\n"
    )
    monkeypatch.setenv("PYTHONPATH", str(tmp_path))


@pytest.fixture(params=["in a new process", "in a forked process"])
def warm(request, tmp_path):
    if request.param == "in a new process":
        yield None
        return
    found = WarmStart(["kept"], tmp_path)
    yield found
    found.close()


def ran(
    folder: Path,
    code: str,
    limits: Limits,
    stop: threading.Event | None = None,
    warm: WarmStart | None = None,
) -> tuple[Ended, bytes, bytes]:
    """Run code as a module, whose first argument is `ALIVE`."""
    (folder / "part.py").write_text(code)
    with tempfile.TemporaryFile() as stdout, tempfile.TemporaryFile() as stderr:
        ended = run_limited(
            "part",
            ["x"],
            limits,
            stdout=stdout,
            stderr=stderr,
            folder=folder,
            stop=stop,
            warm=warm,
        )
        stdout.seek(0)
        stderr.seek(0)
        return ended, stdout.read(), stderr.read()


def test_a_process_that_ends_by_itself(tmp_path, warm):
    code = (
        "import sys, os, atexit; atexit.register(print, 'end')\n"
        "print(sys.argv[2:], os.getcwd(), __name__, sys.modules['__main__'].__file__, sys.stdin.read())\n"
        "print('said', file=sys.stderr); sys.exit(3)"
    )

    ended, stdout, stderr = ran(tmp_path, code, Limits(60), warm=warm)

    assert (ended.code, ended.limit) == (3, None)
    assert stdout.decode().split() == ["['x']", str(tmp_path), "__main__", str(tmp_path / "part.py"), "end"]
    assert stderr == b"said\n"
    assert ended.peak_bytes > 2**20


@pytest.mark.parametrize(
    ("code", "limits", "limit"),
    [
        ("import time; time.sleep(100)", Limits(0.2), "seconds"),
        ("import time; held = b'x' * 2**28; time.sleep(100)", Limits(60, 2**27), "bytes"),
    ],
)
def test_a_process_is_killed_at_a_limit(tmp_path, code, limits, limit, warm):
    ended, _, _ = ran(tmp_path, code, limits, warm=warm)

    assert (ended.code, ended.limit) == (None, limit)
    assert ended.seconds < 60


def test_a_signal_is_a_negative_code(tmp_path, warm):
    ended, _, _ = ran(tmp_path, "import os; os.abort()", Limits(60), warm=warm)

    assert (ended.code, ended.limit) == (-signal.SIGABRT, None)


def test_another_thread_stops_it(tmp_path, warm):
    stop = threading.Event()
    threading.Timer(0.2, stop.set).start()

    ended, _, _ = ran(tmp_path, "import time; time.sleep(100)", Limits(60), stop, warm)

    assert ended.limit == "stopped"


def test_a_forked_process_starts_as_a_new_one(tmp_path, warm):
    code = (
        "import kept, os, json; print(json.dumps(kept.state()))\n"
        "kept.changed.append(1); os.environ['CHANGED'] = '1'; os.chdir('/')"
    )

    (*first, one, is_leader), (*second, other, _) = (
        json.loads(ran(tmp_path, code, Limits(60), warm=warm)[1]) for _ in range(2)
    )

    assert first == second == [[], None, str(tmp_path)]
    assert one != other  # Random numbers are not those of the process that was forked.
    assert is_leader


def test_a_forked_process_has_as_many_files_open_as_a_new_one(tmp_path):
    warm = WarmStart(["kept"], tmp_path)
    code = "import os; print(len(os.listdir('/proc/self/fd')))"

    found = [ran(tmp_path, code, Limits(60), warm=each)[1] for each in (None, warm, warm)]
    warm.close()

    assert len(set(found)) == 1


@pytest.mark.parametrize(
    ("modules", "reason"),
    [
        (["absent_module"], "absent_module cannot be imported once for all runs: ModuleNotFoundError: No"),
        (["threaded"], "threaded cannot be imported once for all runs: importing started a thread"),
    ],
)
def test_what_cannot_be_imported_once(tmp_path, modules, reason):
    warm = WarmStart(modules, tmp_path)

    for _ in range(2):
        with pytest.raises(NoWarmStart, match=reason):
            ran(tmp_path, "", Limits(60), warm=warm)
    warm.close()


def test_the_process_that_is_forked_was_killed(tmp_path):
    warm = WarmStart(["kept"], tmp_path)
    code = "import os; print(open(f'/proc/{os.getppid()}/stat').read().split()[3])"
    server = int(ran(tmp_path, code, Limits(60), warm=warm)[1])

    os.kill(server, signal.SIGKILL)
    _wait(lambda: "Z" in Path(f"/proc/{server}/stat").read_text())

    with pytest.raises(NoWarmStart, match="has ended"):
        ran(tmp_path, "", Limits(60), warm=warm)
    warm.close()


@pytest.mark.parametrize("warm", ["None", "WarmStart(['kept'], Path('.'))"])
def test_it_ends_when_its_parent_is_killed(tmp_path, warm):
    (tmp_path / "part.py").write_text(
        "import os, sys, time\n"
        "from fakexport.files.processes import end_with_parent\n"
        "end_with_parent(int(sys.argv[1]))\n"
        "open('pid', 'w').write(str(os.getpid()))\n"
        "time.sleep(100)\n"
    )
    code = (
        "import sys\n"
        "from pathlib import Path\n"
        "from fakexport.files.processes import Limits, WarmStart, run_limited\n"
        f"warm, files = {warm}, dict(stdout=sys.stdout.buffer, stderr=sys.stderr.buffer)\n"
        "run_limited('part', [], Limits(60), **files, warm=warm)\n"
    )
    parent = subprocess.Popen([sys.executable, "-c", code], cwd=tmp_path)
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


@pytest.mark.parametrize("own", [None, "2"])
def test_numpy_starts_no_thread_before_the_fork(tmp_path, monkeypatch, own):
    monkeypatch.delenv("OMP_NUM_THREADS", raising=False)
    monkeypatch.delenv("OPENBLAS_NUM_THREADS", raising=False)
    if own is not None:
        monkeypatch.setenv("OPENBLAS_NUM_THREADS", own)
    warm = WarmStart(["numpy"], tmp_path)

    code = "import os, sys\nprint('numpy' in sys.modules, os.environ.get('OPENBLAS_NUM_THREADS'))"
    _, stdout, _ = ran(tmp_path, code, Limits(60), warm=warm)

    warm.close()
    assert stdout.decode().split() == ["True", str(own)]
