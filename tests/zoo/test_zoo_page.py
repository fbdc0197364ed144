"""The page of a zoo says what came out differently with another torch."""

from __future__ import annotations

import json
import shutil
import subprocess
import sys
from pathlib import Path

ROOT = Path(__file__).parents[2]


def test_checks_that_ran_with_two_torches_are_compared(tmp_path):
    shutil.copy(ROOT / "docs/zoo/transformers.json", tmp_path)
    zoo = json.loads((tmp_path / "transformers.json").read_text())
    checks = [
        check
        for check in zoo["checks"]
        if check["results"][0]["status"] == "exports" and check["results"][0]["environment"] == 0
    ][:4]
    versions = {"torch": "2.99.1", "transformers": "1"}
    lines = [
        json.dumps({"command": check["command"], "versions": versions, "machine": "a machine", **outcome})
        for check, outcome in zip(
            checks,
            [{"status": "exports", "reason": ""}] * 3
            + [{"status": "fails", "reason": "FE999: another | reason"}],
            strict=True,
        )
    ]
    (tmp_path / "other.jsonl").write_text("\n".join(lines))

    arguments = ["transformers", "abc1234", "--other", tmp_path / "other.jsonl", tmp_path]
    subprocess.run([sys.executable, ROOT / "tools/zoo_page.py", *arguments], check=True)

    page = (tmp_path / "transformers.md").read_text()
    section = " ".join(page.partition("## Two versions of torch")[2].partition("\n## ")[0].split())
    assert "4 of the models that ran with torch" in section
    assert "were run with torch 2.99.1 as well" in section
    assert "3 came out with the same status and reason" in section
    assert "| exports | 4 | 3 |" in section
    differing = checks[3]["source"].removeprefix("hf:")
    assert f"| `{differing}` | exports | FE999: another \\| reason |" in section
    assert section.count("| `") == 1
    kept = json.loads((tmp_path / "transformers-torch-2.99.json").read_text())
    assert [check["command"] for check in kept["checks"]] == [check["command"] for check in checks]
