"""Models of published sizes, from their configs, exported for devices that are not here."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

import pytest

import fakexport as fe

pytestmark = pytest.mark.slow

ROOT = Path(__file__).parents[2]
CONFIGS = ROOT / "examples" / "configs"

# `test_diffusers.py` has the models of diffusers, and 405B has tests of its own.
NAMES = sorted(
    {path.stem for path in CONFIGS.glob("*.json")} - {"flux1-dev", "sdxl-unet", "sdxl-vae", "llama-3.1-405b"}
)


def check(name, *targets, **options):
    return fe.check(f"hf:{CONFIGS / name}.json", target=targets, **options)


@pytest.mark.alone
@pytest.mark.parametrize("name", NAMES)
def test_it_exports_on_an_h100(name):
    report = check(name, "H100")

    (verdict,) = report.verdicts
    assert verdict.is_exportable, report.diagnostics
    assert verdict.summary.devices == ("cuda:0",)


@pytest.mark.alone
def test_mixtral_takes_another_way_on_a_t4_than_on_an_h100():
    report = check("mixtral-8x22b", "T4", "H100", dtype="bfloat16")

    (difference,) = report.differences
    operators = {entry.operator: entry for entry in difference.difference.operators}
    grouped = operators["aten._grouped_mm.default"]
    fallback = operators["transformers.grouped_mm_fallback.default"]
    layers = 56
    assert (grouped.count_a, grouped.count_b) == (0, 2 * layers)
    assert (fallback.count_a, fallback.count_b) == (2 * layers, 0)


# One group, so that workers side by side do not each export it.
in_one_worker = pytest.mark.xdist_group("llama-405b")


@pytest.fixture(scope="module")
def llama_405b():
    """The README's command, in a process of its own, as JSON."""
    command = [sys.executable, "-m", "fakexport", "check", f"hf:{CONFIGS / 'llama-3.1-405b.json'}"]
    command += ["--target", "8xH100", "--device-map", "balanced", "--dtype", "bfloat16", "--dynamic", "auto"]
    done = subprocess.run(
        [*command, "--format", "json"], cwd=ROOT, capture_output=True, text=True, check=False
    )
    assert done.returncode == 0, done.stderr
    report = json.loads(done.stdout)
    return {**report["targets"][0], "measured": report["measured"][0]}


@in_one_worker
def test_405_billion_parameters_are_counted(llama_405b):
    assert llama_405b["is_exportable"]
    assert llama_405b["summary"]["parameters"]["elements"] == 405_853_388_800


@in_one_worker
def test_the_hidden_state_crosses_seven_boundaries(llama_405b):
    hidden = [move for move in llama_405b["transfers"] if move["shape"][-1:] == ["16384"]]

    assert [(move["source"], move["target"]) for move in hidden] == [
        (f"cuda:{index}", f"cuda:{index + 1}") for index in range(7)
    ]


@in_one_worker
def test_every_transfer_has_bytes_and_a_line(llama_405b):
    for move in llama_405b["transfers"]:
        assert move["bytes"] > 0
        assert move["span"]["path"].endswith("modeling_llama.py")


@in_one_worker
def test_405_billion_parameters_need_less_than_400_mb(llama_405b):
    assert llama_405b["measured"]["growth_bytes"] < 400e6
