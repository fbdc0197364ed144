"""GPT-2's decoder, exported on the CPU: its devices are found, replaced with one command, and it runs."""

from pathlib import Path

import pytest

import fakexport as fe
from fakexport.exporting.program import devices
from fakexport.rules import rule
from tests.command_line import fakexport_here

transformers = pytest.importorskip("transformers")

EXAMPLE = Path("examples/captioning.py").absolute()
SMALL = f"""
import runpy


def decoder():
    return runpy.run_path({str(EXAMPLE)!r})["decoder"](layers=2, width=48, heads=4)
"""


@pytest.fixture(scope="module")
def decoder(tmp_path_factory):
    path = tmp_path_factory.mktemp("decoder") / "small.py"
    path.write_text(SMALL)
    return f"{path}:decoder"


@pytest.fixture(scope="module")
def archive(decoder, tmp_path_factory):
    path = tmp_path_factory.mktemp("decoder") / "cpu.pt2"
    fakexport_here("export", decoder, "--dynamic", "input_ids.1=2..256", "-o", path)
    return path


def test_the_hard_coded_devices_are_found_with_their_lines(archive):
    text = fakexport_here("inspect", archive, "--devices").stdout

    for line in (571, 575, 581, 590):
        assert f"transformers/models/gpt2/modeling_gpt2.py:{line}" in text
    assert text.count("warning[FE501]") == 4
    assert "aten.embedding.default gets weight on cuda:0, indices on cpu" in text
    assert text.splitlines()[-1].startswith("15 device literals, 15 baked in; ")


def test_one_command_makes_the_program_of_the_gpu(archive, decoder, tmp_path):
    """But for the copies behind attention, which takes a kernel with another layout there: it says so."""
    out, native = tmp_path / "gpu.pt2", tmp_path / "native.pt2"

    said = fakexport_here("retarget", archive, "--to", "cpu=cuda:0", "--target", "H100", "-o", out)

    fakexport_here("export", decoder, "--target", "H100", "--dynamic", "input_ids.1=2..256", "-o", native)
    moved = fe.load(out)
    found = fe.diff(moved, fe.load(native))
    assert [(d.operator, d.count_a, d.count_b) for d in found.operators] == [
        ("aten.contiguous.default", 0, 2)
    ]
    assert (found.devices, found.changes, found.constants) == ((), (), ())
    assert {literal.device for literal in devices(moved)} == {"cuda:0"}
    assert said.stdout == f"{out}: {out.stat().st_size:,} bytes, on cuda:0\n"
    assert said.stderr.startswith("note: aten.scaled_dot_product_attention.default runs a different kernel")


def test_a_map_that_names_no_device_of_the_program_is_one_line(archive, tmp_path):
    out = tmp_path / "out.pt2"

    refused = fakexport_here("retarget", archive, "--to", "cuda:7=cpu", "-o", out, code=2)

    assert refused.stderr == "error: the program does not use cuda:7; its devices are cpu\n"
    assert not out.exists()


def test_what_fails_on_the_new_device_is_a_finding(tmp_path):
    source = tmp_path / "model.py"
    source.write_text(rule("FE504").failing_model)
    fakexport_here("export", f"{source}:factory", "--target", "H100", "-o", tmp_path / "gpu.pt2")

    failed = fakexport_here(
        "retarget", tmp_path / "gpu.pt2", "--to", "cuda:0=cpu", "-o", tmp_path / "cpu.pt2", code=1
    )

    assert failed.stdout.startswith("error[FE504]: ")
    assert "model.py:8" in failed.stdout
    assert not (tmp_path / "cpu.pt2").exists()
