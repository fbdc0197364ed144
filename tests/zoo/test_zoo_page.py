"""The page of a zoo says what came out differently with another torch, and what exports with an option."""

from __future__ import annotations

import importlib
import json
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]


def checks_of(folder, status):
    """Return the checks of the page, copied to a folder, that ended so with the first torch."""
    shutil.copy(ROOT / "docs/zoo/transformers.json", folder)
    zoo = json.loads((folder / "transformers.json").read_text())
    results = [(check, check["results"][0]) for check in zoo["checks"]]
    return [check for check, result in results if (result["status"], result["environment"]) == (status, 0)]


def section(folder, kind, run, title):
    """Return a section of the page, as one line, after a run of a kind was added to it."""
    versions = {"torch": "2.99.1", "transformers": "1"}
    lines = [json.dumps({"versions": versions, "machine": "a machine", **record}) for record in run]
    (folder / "run.jsonl").write_text("\n".join(lines))
    arguments = ["transformers", "abc1234", kind, folder / "run.jsonl", folder]
    subprocess.run([sys.executable, ROOT / "tools/zoo_page.py", *arguments], check=True)
    page = (folder / "transformers.md").read_text()
    return " ".join(page.partition(f"## {title}")[2].partition("\n## ")[0].split())


def test_checks_that_ran_with_two_torches_are_compared(tmp_path):
    checks = checks_of(tmp_path, "exports")[:4]
    outcomes = [("exports", "")] * 3 + [("fails", "FE999: another | reason")]
    run = [
        {"command": check["command"], "status": status, "reason": reason}
        for check, (status, reason) in zip(checks, outcomes, strict=True)
    ]

    text = section(tmp_path, "--other", run, "Two versions of torch")

    assert "4 of the models that ran with torch" in text
    assert "were run with torch 2.99.1 as well" in text
    assert "3 came out with the same status and reason" in text
    assert "| exports | 4 | 3 |" in text
    differing = checks[3]["source"].removeprefix("hf:")
    assert f"| `{differing}` | exports | FE999: another \\| reason |" in text
    assert text.count("| `") == 1
    kept = json.loads((tmp_path / "transformers-torch-2.99.json").read_text())
    assert [check["command"] for check in kept["checks"]] == [check["command"] for check in checks]


def test_models_that_export_with_an_option_are_named_and_not_counted(tmp_path):
    passing, failing = checks_of(tmp_path, "exports")[0], checks_of(tmp_path, "fails")[:3]
    before = (ROOT / "docs/zoo/transformers.md").read_text()
    assumed = " --assume modeling.py:7=False"
    run = [
        {"command": f"fakexport check {passing['source']} --target H100", "status": "exports", "reason": ""},
        {"command": failing[0]["command"] + assumed, "status": "exports", "reason": ""},
        {"command": failing[1]["command"] + assumed, "status": "fails", "reason": "FE201"},
        {
            "command": f"fakexport check {failing[2]['source']} --target H100 --dtype float32",
            "status": "exports",
            "reason": "",
        },
    ]

    text = section(tmp_path, "--options", run, "Models that export with an option")

    assert text.startswith("2 of the models that do not export do so")
    types = [check["source"].removeprefix("hf:") for check in failing]
    assert f"| `{types[0]}` | `{assumed.strip()}` |" in text
    assert f"| `{types[2]}` | `--dtype float32` |" in text
    assert text.count(" | `--") == 2
    head = before.partition("\n## ")[0]
    assert (tmp_path / "transformers.md").read_text().startswith(head)


@pytest.mark.parametrize(
    ("reason", "notes", "why"),
    [
        (
            "FE102",
            ["diffusers' own default config cannot build X: it raises the same without fakexport"],
            "diffusers cannot build its default config",
        ),
        ("error: diffusers:X has no default configuration, it requires y", [], "it has no default config"),
        (
            "error: diffusers:X is made of other models and has no config: check each",
            [],
            "it is made of other models, and has no config",
        ),
        (
            "error: diffusers:X has no forward of its own, it is a part of Y: check that",
            [],
            "it has no `forward`: one calls methods of it, or its parts",
        ),
        (
            "FE102",
            ["ModuleNotFoundError: No module named 'torchvision'"],
            "a package is not installed that it needs",
        ),
        ("FE202", ["eager mode raises it too: ValueError"], "eager mode raises the same error"),
        ("FE202", ["RuntimeError: no kernel"], ""),
    ],
)
def test_why_eager_mode_does_not_run_a_model_is_what_its_check_found(reason, notes, why, monkeypatch):
    monkeypatch.syspath_prepend(str(ROOT / "tools"))
    page = importlib.import_module("zoo_page")
    report = {"diagnostics": [{"severity": "error", "notes": notes}]} if notes else None

    assert page._eager({"reason": reason, "report": report}) == why
