"""The answer for a target is that of a fresh process for this target alone, whatever the file does."""

import contextlib
import json
import os
import sys
import threading
import time
import warnings
from pathlib import Path

import pytest
import torch
from torch import nn

import fakexport as fe
from fakexport.cli import main
from fakexport.files.processes import IN_PROCESS, SharedProcess
from fakexport.report import BlockCount
from tests.forked import run_python
from tests.unit.checking.leaking_models import KEPT, LEFT, source_of

pytestmark = pytest.mark.skipif(sys.platform != "linux", reason="processes are forked on Linux only")
TARGETS = ("H100", "T4")


@pytest.fixture
def path(tmp_path, monkeypatch):
    """Of a file in the working directory."""
    monkeypatch.chdir(tmp_path)
    return tmp_path / "model.py"


def state_of_this_process():
    return (
        Path.cwd(),
        dict(os.environ),
        torch.get_default_dtype(),
        torch.is_grad_enabled(),
        torch.initial_seed(),
        torch.relu,
        len(threading.enumerate()),
        list(sys.path),
        sys.getrecursionlimit(),
        {name for name in sys.modules if name.startswith(("acme", "fakexport_source"))},
    )


def added(verdict):
    """The constant that the program of a case adds."""
    (number,) = [
        node.args[1] for node in verdict.program.graph.nodes if node.target is torch.ops.aten.add.Tensor
    ]
    return number


SOON = (*list(KEPT)[:5], *list(LEFT)[:3])


@pytest.mark.parametrize(
    "case", [pytest.param(case, marks=() if case in SOON else pytest.mark.slow) for case in (*KEPT, *LEFT)]
)
def test_a_target_has_the_answer_of_a_fresh_process(case, path):
    path.write_text(source_of(case))
    right = dict(zip(TARGETS, KEPT[case][1] if case in KEPT else (0, 0), strict=True))
    before = state_of_this_process()

    reports = [fe.check("model.py:factory", target=targets) for targets in (TARGETS, TARGETS[::-1])]

    assert state_of_this_process() == before
    archives = []
    for report in reports:
        assert report.is_clean, str(report)
        assert {verdict.target.name: added(verdict) for verdict in report.verdicts} == right
        archives.append({verdict.target.name: verdict.saved for verdict in report.verdicts})
    assert archives[0] == archives[1]


CACHED = {}


def test_what_a_live_factory_keeps_of_a_target_is_forgotten():
    class Asking(nn.Module):
        def forward(self, x):
            return x + CACHED.setdefault("capability", torch.cuda.get_device_capability()[0])

    for targets in (TARGETS, TARGETS[::-1]):
        report = fe.check(lambda: (Asking(), (torch.zeros(2),)), target=targets)
        assert {each.target.name: added(each) for each in report.verdicts} == {"H100": 9, "T4": 7}
    assert not CACHED


def test_a_live_module_is_left_as_it_is():
    class Counting(nn.Module):
        def __init__(self):
            super().__init__()
            self.capability = None

        def forward(self, x):
            self.capability = self.capability or torch.cuda.get_device_capability()[0]
            return x + self.capability

    module = Counting()
    report = fe.check(module, (torch.zeros(2),), target=TARGETS)

    assert [added(verdict) for verdict in report.verdicts] == [9, 7]
    assert module.capability is None


# What ends the process of a target, and the reason that is reported.
ENDINGS = {
    "os._exit(0)": "exit code 0",
    "sys.exit(0)": "SystemExit: 0",
    "os.kill(os.getpid(), 9)": "killed by SIGKILL",
    "os.kill(os.getpid(), 10)": "killed by SIGUSR1",
    "os.closerange(3, 256); time.sleep(60)": "killed by SIGKILL",
}


@pytest.mark.parametrize("ending", ENDINGS)
def test_a_process_that_ends_is_a_failure_of_its_target(ending, path, capfd):
    path.write_text(
        "import os, sys, time, torch\nfrom torch import nn\n\n"
        "class Model(nn.Module):\n    def forward(self, x):\n"
        "        if torch.cuda.is_available() and 'T4' in torch.cuda.get_device_name():\n"
        f"            print('the end', flush=True); {ending}\n        return x + 1\n\n"
        "def factory():\n    return Model(), (torch.zeros(2),)\n"
    )

    code = main(["check", "model.py:factory", "--target", "T4", "--target", "H100", "--format", "json"])

    out, err = capfd.readouterr()
    found = json.loads(out)
    assert code == 1
    assert [target["is_exportable"] for target in found["targets"]] == [False, True]
    assert found["targets"][0]["failed_stage"] == "capture"
    (diagnostic,) = found["diagnostics"]
    assert (diagnostic["code"], diagnostic["targets"]) == ("FE106", ["T4"])
    assert ENDINGS[ending] in diagnostic["notes"][0]
    assert diagnostic["notes"][1] == "last output: the end"
    assert "the end" in err


@pytest.mark.parametrize("ending", ["os._exit(0)", "os.kill(os.getpid(), 9)"])
def test_a_file_that_ends_its_process_is_never_clean(ending, path):
    path.write_text(f"import os\n{ending}\n")

    report = fe.check("model.py:factory", target=["H100", "cpu"])

    assert not report.is_clean
    assert [verdict.failed_stage for verdict in report.verdicts] == ["build", "build"]
    (diagnostic,) = report.diagnostics
    assert (diagnostic.code, diagnostic.targets) == ("FE106", ("H100", "cpu"))
    assert report.source == "model.py:factory"


WRITES = """
import atexit, os, sys, threading, time
import torch
from torch import nn

print("printed")
os.write(1, b"written\\n")
os.write(2, b"an error\\n")
os.chdir("/")
atexit.register(print, "at exit")
threading.Thread(target=time.sleep, args=(60,)).start()


def factory():
    return nn.Linear(2, 2), (torch.zeros(1, 2),)
"""


def test_a_model_writes_to_stderr_only_and_does_not_hold_the_command(path, capfd):
    path.write_text(WRITES)
    started = time.monotonic()

    assert main(["check", "model.py:factory", "--format", "json", "--no-progress"]) == 0

    out, err = capfd.readouterr()
    assert json.loads(out)["is_clean"]
    assert sorted(err.splitlines()) == ["an error", "printed", "written"]
    assert time.monotonic() - started < 30


def test_a_file_is_written_where_the_command_runs(path):
    path.write_text(WRITES)

    assert main(["export", "model.py:factory", "-o", "out.pt2", "--no-progress"]) == 0

    assert fe.load(path.with_name("out.pt2")).state_dict.keys() == {"weight", "bias"}


def test_the_order_of_sources_changes_nothing(path):
    """The second file sees nothing of the first one, also in the lock."""
    for name, case in (("a", "default dtype"), ("b", "default dtype"), ("c", "autocast"), ("d", "autocast")):
        path.with_name(f"{name}.py").write_text(source_of(case))
    locks = []
    for order in ("abcd", "dcba"):
        sources = [f"{name}.py:factory" for name in order]
        path.with_name("pyproject.toml").write_text(f"[tool.fakexport]\nsources = {sources}\n")
        assert main(["lock", "--no-progress"]) == 0
        locks.append(path.with_name("fakexport.lock").read_text())

    assert locks[0] == locks[1]


def test_an_error_of_usage_keeps_its_type_and_text(path):
    path.write_text("import torch\n\nraise OSError('no\\nlicense')\n")

    with pytest.raises(
        fe.FakexportError, match=r"^model\.py cannot be imported: OSError: no license at "
    ) as e:
        fe.check("model.py:factory", target=TARGETS)

    assert type(e.value).__name__ == "SourceError"
    assert e.value.args == (str(e.value),)


def test_progress_is_told_in_the_order_of_the_targets(path):
    path.write_text(source_of("function cache"))
    told = []

    fe.check("model.py:factory", target=TARGETS, on_progress=told.append)

    assert [(each.target, each.step) for each in told] == [
        *((name, step) for name in TARGETS for step in ("build", "trace", "analyse")),
        ("", "compare"),
    ]
    assert isinstance(told[1].blocks, BlockCount)


def test_where_targets_share_a_process_a_warning_says_so(path, monkeypatch):
    path.write_text(source_of("flag of a backend"))
    monkeypatch.setenv(IN_PROCESS, "1")

    with pytest.warns(
        SharedProcess, match="^targets and sources share a process: FAKEXPORT_IN_PROCESS is set$"
    ):
        fe.check("model.py:factory", target=TARGETS)
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        fe.check("model.py:factory", target="H100")  # One target alone shares nothing.
    torch.backends.cuda.matmul.allow_tf32 = False


def test_the_command_line_says_that_targets_share_a_process(path, monkeypatch, capsys):
    path.write_text(source_of("function cache"))
    monkeypatch.setattr(torch.cuda, "is_initialized", lambda: True)
    options = [part for name in TARGETS for part in ("--target", name)]

    assert main(["check", "model.py:factory", "--no-progress", *options]) == 0

    reason = "CUDA is initialized in this process, and does not work in a fork"
    assert capsys.readouterr().err == f"warning: targets and sources share a process: {reason}\n"


def test_a_check_in_emulated_devices_is_one_of_its_own(path):
    path.write_text(source_of("function cache"))

    with fe.emulate("A100"):
        (verdict,) = fe.check("model.py:factory", target="T4").verdicts
        assert torch.cuda.get_device_capability() == (8, 0)

    assert added(verdict) == 7


def test_checks_of_several_threads_and_a_trace_in_another_do_not_wait_for_ever(path):
    path.write_text(source_of("function cache"))
    found = []

    def traces():
        for _ in range(3):
            fe.export(lambda: (nn.Linear(2, 2), (torch.zeros(1, 2),)), target="H100")

    def checks():
        with contextlib.suppress(UserWarning), warnings.catch_warnings():
            warnings.simplefilter("ignore")
            found.append([added(each) for each in fe.check("model.py:factory", target=TARGETS).verdicts])

    threads = [threading.Thread(target=each, daemon=True) for each in (traces, checks, checks)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(60)

    assert not any(thread.is_alive() for thread in threads)
    assert found == [[9, 7], [9, 7]]


def test_a_fork_after_parallel_work_of_torch_does_not_hang():
    done = run_python(
        "import torch, fakexport as fe\n"
        "torch.set_num_threads(2)\n"
        "work = lambda: (torch.ones(500, 500) @ torch.ones(500, 500)).relu().sum().item()\n"
        "expected = work()\n"
        "class Model(torch.nn.Module):\n"
        "    def __init__(self):\n"
        "        super().__init__()\n"
        "        self.register_buffer('table', torch.ones(500, 500).mm(torch.ones(500, 500)), False)\n"
        "    def forward(self, x): return x + self.table.sum()\n"
        "if __name__ == '__main__':\n"
        "    report = fe.check(lambda: (Model(), (torch.zeros(2),)), target=['cpu', 'H100'])\n"
        "    print(report.is_clean, report.verdicts[0].program.constants['table'].sum().item() == expected)\n"
    )

    assert done.stdout.split() == ["True", "True"], done.stderr


def test_a_report_can_be_sent_to_another_process(path):
    import pickle

    path.write_text(source_of("function cache"))
    report = fe.check("model.py:factory", target=TARGETS)
    assert added(report.verdicts[0]) == 9

    copy = pickle.loads(pickle.dumps(report))

    assert copy == report
    assert added(copy.verdicts[0]) == 9
