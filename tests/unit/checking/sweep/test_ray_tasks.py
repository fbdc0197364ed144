"""A sweep on a real cluster of Ray: its node dies, and checks do what they can do to it."""

import collections
import threading
import time
from contextlib import closing
from pathlib import Path

import pytest

from fakexport.checking.sweep import RunFile, Sweep, SweepItem, ray_cluster, ray_records, read_run, run_sweep
from fakexport.checking.sweep.ray_tasks import RayFault
from fakexport.files.processes import Limits

cluster_utils = pytest.importorskip("ray.cluster_utils", reason="needs the extra `ray`")
pytestmark = [
    pytest.mark.slow,
    pytest.mark.filterwarnings(  # Ray 2.60 leaves sockets and files to the garbage collection.
        "ignore::ResourceWarning", "ignore::pytest.PytestUnraisableExceptionWarning"
    ),
    pytest.mark.filterwarnings("ignore::FutureWarning:ray", "ignore::DeprecationWarning:ray"),
]

# Stands for `fakexport.cli.limited_command`, as in test_sweep.py, and says on which node each check began.
_PART = """
import json, os, sys, time
from fakexport.files.processes import end_with_parent
_, alive, _, _, source, *options = sys.argv
end_with_parent(int(alive))
with open("began", "a") as file: file.write(f"{os.environ['NODE']} {source} {os.getpid()}\\n")
if source == "aborts": os.abort()
if source.startswith("sleeps"): time.sleep(100)
if source.startswith("waits") and os.environ["NODE"] == "first":
    while open("began").read().count("second ") < 2: time.sleep(0.05)
time.sleep(1)
print(json.dumps({"is_clean": True, "diagnostics": []}))
"""
_SECONDS = 4
# For the first worker of a new node to begin, on a machine that has other things to do.
_PATIENCE_S = 20
_LIMITS = Limits(_SECONDS)


@pytest.fixture(scope="module")
def cluster(tmp_path_factory):
    """A node that runs a check at a time."""
    folder = tmp_path_factory.mktemp("modules")
    (folder / "part.py").write_text(_PART)
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("PYTHONPATH", str(folder))
        patch.setenv("RAY_USAGE_STATS_ENABLED", "0")
        head = {"num_cpus": 1, "env_vars": {"NODE": "first"}, "include_dashboard": False}
        made = cluster_utils.Cluster(initialize_head=True, head_node_args=head)
        yield made
        made.shutdown()


def sweep_of(sources, folder, limits=_LIMITS):
    return Sweep([SweepItem(source=source) for source in sources], limits, folder, "part")


def began(folder):
    path = folder / "began"
    return [line.split() for line in path.read_text().splitlines()] if path.exists() else []


def is_running(pid):
    return Path(f"/proc/{pid}/stat").exists()


def test_a_node_that_dies_loses_no_check(cluster, tmp_path):
    sources = [*(f"waits{number}" for number in range(6)), "aborts"]

    second = cluster.add_node(num_cpus=1, env_vars={"NODE": "second"})

    def kill_at_its_second_check():
        while sum(node == "second" for node, *_ in began(tmp_path)) < 2:
            time.sleep(0.05)
        cluster.remove_node(second, allow_graceful=False)

    killer = threading.Thread(target=kill_at_its_second_check)
    with ray_cluster(cluster.address), closing(RunFile(tmp_path / "run.jsonl", resume=False)) as file:
        killer.start()
        run_sweep(sweep_of(sources, tmp_path, Limits(_PATIENCE_S)), file, records_of=ray_records)
    killer.join()

    lines = (tmp_path / "run.jsonl").read_text().splitlines()
    found = {record.command.split()[2]: record for record in read_run(tmp_path / "run.jsonl").values()}
    assert len(lines) == len(found) == len(sources)
    assert found["aborts"].reason == "killed by SIGABRT"
    assert {record.status for name, record in found.items() if "waits" in name} == {"exports"}
    assert all(record.versions["fakexport"] and record.machine for record in found.values())
    starts = collections.Counter(source for _, source, _ in began(tmp_path))
    assert sorted(starts.values()) == [1] * 6 + [2], "the check on the node that died ran again"


def test_a_check_that_takes_too_long_is_killed(cluster, tmp_path):
    with ray_cluster(cluster.address), closing(RunFile(tmp_path / "run.jsonl", resume=False)) as file:
        run_sweep(sweep_of(["sleeps"], tmp_path, Limits(1)), file, records_of=ray_records)

    (record,) = read_run(tmp_path / "run.jsonl").values()
    assert record.reason == "killed after 4 s"


def test_what_ends_a_sweep_ends_its_checks(cluster, tmp_path):
    def interrupt(tally):
        while len(began(tmp_path)) < 2:  # The next one sleeps.
            time.sleep(0.05)
        raise KeyboardInterrupt

    sources = ["exports", *(f"sleeps{number}" for number in range(3))]
    sweep = sweep_of(sources, tmp_path, Limits(100))
    with (
        closing(RunFile(tmp_path / "run.jsonl", resume=False)) as file,
        pytest.raises(KeyboardInterrupt),
        ray_cluster(cluster.address),
    ):
        run_sweep(sweep, file, interrupt, records_of=ray_records)

    assert len(read_run(tmp_path / "run.jsonl")) == 1
    end = time.monotonic() + _SECONDS
    while any(is_running(pid) for *_, pid in began(tmp_path)):
        assert time.monotonic() < end
        time.sleep(0.05)


def test_what_a_cluster_cannot_do_is_one_line(cluster, tmp_path):
    def refusal(sweep):
        with pytest.raises(RayFault) as caught:
            list(ray_records(sweep, sweep.items))
        return str(caught.value)

    with ray_cluster(cluster.address):
        missing = refusal(sweep_of(["exports"], tmp_path / "elsewhere"))
        large = refusal(sweep_of(["exports"], tmp_path, Limits(1, 2**60)))

    assert missing.endswith("each Ray node needs the zoo file's folder")
    assert str(tmp_path / "elsewhere") in missing
    assert large == f"no node of the Ray cluster has the CPU and {2**60:,} bytes of memory that a check needs"
    assert not began(tmp_path)


def test_no_cluster_is_one_line():
    with pytest.raises(RayFault, match="Connection refused"), ray_cluster("127.0.0.1:1"):
        pass
