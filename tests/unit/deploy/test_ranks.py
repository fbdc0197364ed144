"""Which program of an archive a process runs, and with whom."""

from dataclasses import replace

import pytest
import torch
from torch import nn

import fakexport as fe
from fakexport.archive import save, save_bundle
from fakexport.deploy import DeployError, joined, rank_of_archive
from fakexport.exporting.program import facts_of, keep_facts
from fakexport.files.documents import ParallelRecord


def program_of(rank):
    program = fe.export(lambda: (nn.Linear(4, 2), (torch.zeros(3, 4),)))
    if rank is not None:
        keep_facts(program, replace(facts_of(program), parallel=ParallelRecord("tp=2", rank, 2)))
    return program


@pytest.fixture(scope="module")
def archives(tmp_path_factory):
    folder = tmp_path_factory.mktemp("archives")
    save_bundle({"first": program_of(0), "second": program_of(1)}, folder / "ranks.pt2")
    save(program_of(1), folder / "rank1.pt2")
    save(program_of(None), folder / "alone.pt2")
    return folder


@pytest.fixture
def launched(monkeypatch):
    def launch(rank, ranks):
        monkeypatch.setenv("RANK", str(rank))
        monkeypatch.setenv("WORLD_SIZE", str(ranks))

    monkeypatch.delenv("RANK", raising=False)
    monkeypatch.delenv("WORLD_SIZE", raising=False)
    return launch


def test_a_process_runs_the_program_of_its_rank(archives, launched):
    launched(1, 2)

    own = rank_of_archive(archives / "ranks.pt2")

    assert (own.method, own.record.rank, own.is_first) == ("second", 1, False)


def test_a_rank_that_is_asked_for(archives, launched):
    assert rank_of_archive(archives / "ranks.pt2", 0).method == "first"
    assert rank_of_archive(archives / "rank1.pt2", 1).method is None


def test_a_method_that_is_not_there_is_not_replaced_by_a_rank(archives, launched):
    launched(1, 2)

    assert rank_of_archive(archives / "ranks.pt2", method="first").record.rank == 0
    own = rank_of_archive(archives / "ranks.pt2", method="third")

    assert (own.method, own.record) == ("third", None)
    with pytest.raises(fe.ArchiveError, match="has no method 'third'"):
        fe.load(archives / "ranks.pt2", method=own.method)


@pytest.mark.parametrize(
    ("name", "fragment"),
    [("ranks.pt2", "has no program for rank 3: its ranks are 0, 1"), ("alone.pt2", "does not contain ranks")],
)
def test_a_rank_that_is_not_there(archives, name, fragment):
    with pytest.raises(ValueError, match=fragment):
        rank_of_archive(archives / name, 3)


def test_a_rank_with_two_programs_asks_which_one(tmp_path, launched):
    """Its prefill and its decode, for example."""
    save_bundle(
        {"prefill": program_of(0), "decode": program_of(0), "other": program_of(1)}, tmp_path / "b.pt2"
    )

    with pytest.raises(ValueError, match=r"rank 0: choose one of prefill, decode \(--method NAME\)"):
        rank_of_archive(tmp_path / "b.pt2", 0)
    assert rank_of_archive(tmp_path / "b.pt2", 1).method == "other"


def test_a_program_that_runs_alone_needs_no_others(archives, launched):
    own = rank_of_archive(archives / "alone.pt2")

    with joined(own):
        assert not torch.distributed.is_initialized()


@pytest.mark.parametrize(
    ("place", "fragment"),
    [
        (None, "start it with torchrun --nproc-per-node 2 -m fakexport run"),
        ((1, 3), "rank 1 of 2, but this process is rank 1 of 3"),
        ((0, 2), "rank 1 of 2, but this process is rank 0 of 2"),
    ],
)
def test_processes_that_do_not_fit(archives, launched, place, fragment):
    if place is not None:
        launched(*place)
    own = rank_of_archive(archives / "rank1.pt2")

    with pytest.raises(DeployError, match=fragment), joined(own):
        pass
