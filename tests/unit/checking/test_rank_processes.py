"""All ranks of a model, each traced in its own process: the result is that of one process."""

from __future__ import annotations

import os
import signal
import sys
import tempfile
import time
from pathlib import Path

import pytest

import fakexport as fe
from fakexport.checking import Wanted, report_on
from fakexport.checking.rank_programs import with_other_ranks
from fakexport.checking.target_check import TargetCheck
from fakexport.exporting.capture import Request
from fakexport.files.processes import IN_PROCESS, NoAnswer
from tests.parallel_models import factory_of

pytest.importorskip("transformers")
pytestmark = pytest.mark.skipif(sys.platform != "linux", reason="only Linux can fork a process with torch")


def report_of(parallel: str = "tp=2,pp=2"):
    request = Request(source=factory_of("llama"), parallel=parallel, rank="all")
    return report_on(request, wanted=Wanted(programs=True, stages=True))


def archive_of(report) -> bytes:
    (verdict,) = report.verdicts
    return verdict.saved.archive


@pytest.fixture(scope="module")
def one_process():
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv(IN_PROCESS, "1")
        return report_of()


def test_the_processes_write_the_bytes_of_one_process(one_process, tmp_path):
    report = report_of()

    (tmp_path / "all.pt2").write_bytes(archive_of(report))
    assert list(fe.load_bundle(tmp_path / "all.pt2", trust=True)) == [
        *("rank0_stage0", "rank0_stage1", "rank1_stage0", "rank1_stage1")
    ]
    assert archive_of(report) == archive_of(one_process)
    assert report.verdicts[0].ranks == one_process.verdicts[0].ranks
    assert report.diagnostics == one_process.diagnostics


def test_a_rank_that_fails_in_its_process_is_repeated(one_process, monkeypatch):
    monkeypatch.setattr(TargetCheck, "_rank_apart", lambda *_: None)

    assert archive_of(report_of()) == archive_of(one_process)


def test_a_killed_process_is_one_diagnostic_and_leaves_nothing(monkeypatch, tmp_path):
    monkeypatch.setattr(TargetCheck, "_rank_apart", lambda *_: os.kill(os.getpid(), signal.SIGKILL))
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path))

    report = report_of()

    (verdict,) = report.verdicts
    assert (verdict.is_exportable, verdict.saved) == (False, None)
    assert [found.code for found in report.diagnostics] == ["FE106"]
    assert "killed by SIGKILL" in str(report.diagnostics[0])
    assert "rank 0 exports, but rank 1 does not" in verdict.notes
    assert not list(tmp_path.iterdir())


def test_the_other_ranks_learn_where_stages_begin_only_from_rank_0():
    def own(tell):
        tell(("layers.1",))
        return "own"

    found, others = with_other_ranks(range(1, 4), lambda rank, starts: (rank, starts()), own)

    assert found == "own"
    assert others == {rank: (rank, ("layers.1",)) for rank in (1, 2, 3)}


def test_a_process_that_ends_is_the_answer_of_its_rank_alone():
    def work(rank, starts):
        return os._exit(3) if rank == 2 else rank

    _, others = with_other_ranks(range(1, 4), work, lambda tell: tell(None))

    assert (others[1], others[3]) == (1, 3)
    assert isinstance(others[2], NoAnswer)
    assert others[2].reason == "exit code 3"


@pytest.mark.parametrize("ends", ["fails", "is interrupted"])
def test_the_other_ranks_end_with_rank_0(ends, tmp_path):
    def work(rank, starts):
        (tmp_path / str(rank)).write_text(str(os.getpid()))
        starts()

    def own(tell):
        while not (started := list(tmp_path.iterdir())) or not started[0].read_text():
            time.sleep(0.01)
        if ends == "is interrupted":
            raise KeyboardInterrupt
        return "failure"

    if ends == "fails":
        assert with_other_ranks(range(1, 3), work, own) == ("failure", {})
    else:
        with pytest.raises(KeyboardInterrupt):
            with_other_ranks(range(1, 3), work, own)

    for each in tmp_path.iterdir():
        assert is_gone(int(each.read_text()))


def is_gone(pid: int) -> bool:
    until = time.monotonic() + 20
    while time.monotonic() < until:
        try:
            state = Path(f"/proc/{pid}/stat").read_text().rpartition(") ")[2]
        except FileNotFoundError:
            return True
        if state.startswith("Z"):
            return True
        time.sleep(0.01)
    return False
