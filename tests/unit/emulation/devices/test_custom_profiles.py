"""Device profiles of the user: what a file can say, what it is refused for, and where the names are known."""

from __future__ import annotations

import dataclasses
import json
import threading

import pytest
import torch

import fakexport as fe
from fakexport.archive import describe
from fakexport.cli import main
from fakexport.emulation.devices import (
    DeviceProfile,
    ProfileError,
    Topology,
    device_profiles,
    load_profiles,
    profile_named,
)

BIGGER = '[H100-96GB]\nbase = "H100"\nmemory_bytes = 101_468_602_368\naliases = ["big"]\n'
WHOLE = {
    "device_type": "mps",
    "vendor_name": "Apple M9",
    "memory_bytes": 2**36,
    "multiprocessor_count": 80,
    "memory_bandwidth_bytes_per_s": 10**12,
    "peak_flops": {"float32": 30_000_000_000_000, "float16": 6e13},
}


@pytest.fixture
def written(tmp_path):
    """Writes a file of profiles; its path."""

    def write(content, name="devices.toml"):
        path = tmp_path / name
        path.write_text(content if isinstance(content, str) else json.dumps(content))
        return path

    return write


def test_a_profile_on_a_base_differs_in_what_it_says(written):
    with device_profiles(written(BIGGER)) as read:
        found = profile_named("BIG")
        listed = Topology.parse("2xh100-96gb+T4")

    assert found is read["H100-96GB"]
    changed = {"name": "H100-96GB", "aliases": ("big",), "memory_bytes": 101_468_602_368}
    base = dataclasses.asdict(profile_named("H100"))
    assert {**dataclasses.asdict(found), "sources": {}} == {**base, **changed, "sources": {}}
    assert base["sources"].keys() - found.sources.keys() == {"memory_bytes"}
    assert listed.canonical == "2xH100-96GB+T4"


@pytest.mark.parametrize("suffix", ["json", "toml"])
def test_a_profile_without_a_base_says_everything(written, suffix):
    toml = (
        '[M9]\ndevice_type = "mps"\nvendor_name = "Apple M9"\nmemory_bytes = 68_719_476_736\n'
        "multiprocessor_count = 80\nmemory_bandwidth_bytes_per_s = 1_000_000_000_000\n"
        "peak_flops = {float32 = 30_000_000_000_000, float16 = 6e13}\n"
    )

    with device_profiles(written({"M9": WHOLE} if suffix == "json" else toml, f"devices.{suffix}")) as read:
        pass

    expected = {**WHOLE, "peak_flops": {"float32": 3e13, "float16": 6e13}}
    assert read["M9"] == DeviceProfile(name="M9", **expected)


def test_the_names_are_known_in_the_block_and_in_this_thread_alone(written):
    seen = []
    before = dict(load_profiles())

    with device_profiles(written(BIGGER)):
        thread = threading.Thread(target=lambda: seen.extend(load_profiles()))
        thread.start()
        thread.join()
        inside = [*load_profiles()]

    assert inside == [*before, "H100-96GB"]
    assert seen == [*before] == [*load_profiles()]
    with pytest.raises(ValueError, match="unknown device 'big'"):
        profile_named("big")


def bad(**fields):
    return {"X": {**WHOLE, **fields}}


@pytest.mark.parametrize(
    ("content", "said"),
    [
        ("[X", "not TOML: "),
        ({"X": 3}, "[X]: expected a table, got int"),
        ([], "expected a table per profile, got list"),
        ({"X": {}}, "[X]: device_type must be one of"),
        ({"X": {"base": "H10"}}, "[X]: unknown device 'H10': did you mean H100"),
        ({"X": {"base": 3}}, "[X]: field 'base' must be the name of a profile"),
        ({"X": {"base": "cpu"}}, "[X]: field 'base': cpu is a cpu device"),
        ({"X": {"base": "H100", "device_type": "mps"}}, "[X]: field 'base': H100-80GB is a cuda device"),
        (bad(memory="64 GB"), "[X]: unknown field 'memory': did you mean 'memory_bytes'?"),
        (bad(memory_bytes="64 GB"), "[X]: field 'memory_bytes' cannot be '64 GB'"),
        (bad(memory_bytes=0), "[X]: field 'memory_bytes' cannot be 0"),
        (bad(memory_bytes=2**63), "[X]: field 'memory_bytes' cannot be 9223372036854775808"),
        (bad(memory_bytes=True), "[X]: field 'memory_bytes' cannot be True"),
        (bad(memory_bytes=1.5), "[X]: field 'memory_bytes' cannot be 1.5"),
        (bad(device_type="cpu"), "[X]: field 'device_type' cannot be 'cpu'"),
        (bad(device_type=["cuda"]), "[X]: field 'device_type' cannot be ['cuda']"),
        (bad(device_type="cuda"), "[X]: missing field 'capability'; missing field 'l2_cache_bytes'"),
        (bad(capability=[9, 0, 0]), "[X]: field 'capability' cannot be [9, 0, 0]"),
        (bad(capability=[-1, 0]), "[X]: field 'capability' cannot be [-1, 0]"),
        (bad(vendor_name="a\x1b[2J"), "[X]: field 'vendor_name' cannot be 'a\\x1b[2J'"),
        (bad(vendor_name="x" * 2000), "[X]: field 'vendor_name' cannot be 'xxx"),
        (bad(peak_flops={"float7": 1e12}), "[X]: field 'peak_flops' cannot be {'float7': "),
        (bad(peak_flops={"float32": -1.0}), "[X]: field 'peak_flops' cannot be {'float32': -1.0}"),
        (bad(peak_flops={"float32": 10**400}), "[X]: field 'peak_flops' cannot be {'float32': 1000"),
        (bad(sources={"speed": "x"}), "[X]: field 'sources' cannot be {'speed': 'x'}"),
        (bad(aliases=["a+b"]), "[X]: the name 'a+b' cannot be used in a topology"),
        (bad(aliases=["x"]), "[X]: the name 'x' is already used"),
        ({"h100": WHOLE}, "[h100]: the name 'h100' is already used"),
        ({"cuda": WHOLE}, "[cuda]: the name 'cuda' is already used"),
        ({"8xH100": WHOLE}, "[8xH100]: the name '8xH100' cannot be used in a topology"),
        ({"cuda:0": WHOLE}, "[cuda:0]: the name 'cuda:0' cannot be used in a topology"),
        ({"a\nb": WHOLE}, "[a\\nb]: the name 'a\\nb' cannot be used in a topology"),
        ({f"X{index}": WHOLE for index in range(1001)}, "1001 profiles; the limit is 1000"),
        ("[" * 100_000, "not "),
    ],
)
def test_a_bad_file_is_one_line_that_names_file_profile_and_field(written, content, said):
    path = written(content, "devices.toml" if isinstance(content, str) else "devices.json")

    with pytest.raises(ProfileError) as caught, device_profiles(path):
        pytest.fail("it was read")

    assert str(caught.value).startswith(f"{path}: {said}")
    assert str(caught.value).isprintable()


def test_a_file_is_toml_or_json_by_its_name_and_not_too_large(written):
    with (
        pytest.raises(ProfileError, match=r"expected a \.toml or \.json file"),
        device_profiles(written(BIGGER, "devices.txt")),
    ):
        pass
    with pytest.raises(OSError, match="has more than 1,048,576 bytes"), device_profiles(written("#" * 2**21)):
        pass


def test_an_archive_records_the_profile_and_opens_without_the_file(written, tmp_path):
    with device_profiles(written(BIGGER)):
        program = fe.export(torch.nn.Linear(2, 3), (torch.ones(4, 2),), target="2xbig", device_map="cuda:1")
    fe.save(program, tmp_path / "model.pt2")

    (method,) = describe(tmp_path / "model.pt2").manifest.methods.values()
    loaded = fe.load(tmp_path / "model.pt2")
    fe.save(loaded, tmp_path / "again.pt2")

    assert (method.topology, method.profiles) == ("2xH100-96GB", ("H100-96GB", "H100-96GB"))
    assert (tmp_path / "again.pt2").read_bytes() == (tmp_path / "model.pt2").read_bytes()


def test_a_retargeted_program_records_the_profile(written, tmp_path):
    program = fe.export(torch.nn.Linear(2, 3), (torch.ones(4, 2),))
    with device_profiles(written(BIGGER)):
        moved = fe.retarget(program, "cuda:0", target="big")
    fe.save(moved, tmp_path / "model.pt2")

    (method,) = describe(tmp_path / "model.pt2").manifest.methods.values()

    assert (method.topology, method.profiles) == ("H100-96GB", ("H100-96GB",))


def test_the_command_line_knows_the_names(written, monkeypatch, capsys):
    path = written(BIGGER)

    assert main(["devices", "--profiles", str(path), "big"]) == 0
    assert "memory_bytes = 101,468,602,368" in capsys.readouterr().out
    assert main(["devices", "big"]) == 2

    monkeypatch.chdir(path.parent)
    (path.parent / "pyproject.toml").write_text('[tool.fakexport]\nprofiles = "devices.toml"\n')
    (path.parent / "below").mkdir()
    monkeypatch.chdir(path.parent / "below")
    capsys.readouterr()

    assert main(["devices", "big"]) == 0
    assert "memory_bytes = 101,468,602,368" in capsys.readouterr().out
    assert "big" not in load_profiles()


def test_a_bad_file_on_the_command_line_is_one_line_and_exit_code_2(written, capsys):
    path = written({"X": {"base": "H10"}}, "devices.json")

    assert main(["check", "m:f", "--profiles", str(path)]) == 2
    assert main(["check", "m:f", "--profiles", f"{path}.json"]) == 2

    first, second = capsys.readouterr().err.splitlines()
    assert first.startswith(f"error: {path}: [X]: unknown device 'H10': did you mean H100")
    assert second == f"error: {path}.json: No such file or directory"
