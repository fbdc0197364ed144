"""Summarize the results of a run as Markdown: the comparisons, the device, and all unexpected results."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

_LONGEST = 400


def read_results(path: Path) -> list[dict[str, Any]]:
    """Return the results. The last line may be incomplete if the run was killed."""
    found = []
    for line in path.read_text().splitlines() if path.exists() else ():
        try:
            found.append(json.loads(line))
        except json.JSONDecodeError:
            continue
    return found


def is_all_right(path: Path) -> bool:
    return not any(_is_wrong(line) for line in read_results(path))


def summary(path: Path) -> str:
    """Return a table with a row per step, and a line for each failure and each difference."""
    lines = read_results(path)
    about = next((line for line in lines if "torch" in line and line["step"] == "smoke"), {})
    device = about.get("device") or f"no GPU; {about.get('profile', 'nothing')} is emulated"
    versions = ", ".join(
        f"{name} {about.get(name)}" for name in ("torch", "transformers", "triton", "python")
    )
    seconds = {line["case"]: line["seconds"] for line in lines if line["step"] == "time"}
    rows = ["| step | as expected | different | failed | seconds |", "|---|---|---|---|---|"]
    for step in dict.fromkeys(line["step"] for line in lines if line["step"] != "time"):
        own = [line for line in lines if line["step"] == step]
        counts = (
            sum(line.get("ok") is True for line in own),
            sum(line.get("ok") is False for line in own),
            sum("error" in line for line in own),
        )
        rows.append(f"| {step} | {' | '.join(map(str, counts))} | {seconds.get(step, '')} |")
    wrong = [f"- {_text(line)}" for line in lines if _is_wrong(line)]
    return "\n".join([f"{device}; {versions}", "", *rows, "", *wrong, ""])


def _is_wrong(line: dict[str, Any]) -> bool:
    return "error" in line or line.get("ok") is False


def _text(line: dict[str, Any]) -> str:
    facts = {name: value for name, value in line.items() if name not in ("step", "case", "ok", "traceback")}
    text = " ".join(f"{name}={value}" for name, value in facts.items() if value not in ("", [], None))
    return f"{line['step']} {line['case']}: {' '.join(text.split())[:_LONGEST]}"
