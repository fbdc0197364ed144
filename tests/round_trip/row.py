"""One row of the published table: what became of one architecture."""

from __future__ import annotations

import json
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from .reasons import DIFFERENT, UNALIGNED, reason_of

__all__ = ["EQUAL", "Row", "is_difference", "read_row"]

EQUAL = "equal"


@dataclass(frozen=True)
class Row:
    """What the page says of one architecture.

    Args:
        name: `llama`, `timm:resnet18`.
        class_name: Of the model; empty where none exported.
        dtype: Of its weights.
        sizes: The example's, and those of the sets that were run.
        cpu: Of the program for the CPU: `equal`, by how much it differs, or what was raised.
        h100: The same for the program of an H100, bound to the CPU.
    """

    name: str
    class_name: str
    dtype: str
    sizes: str
    cpu: str
    h100: str

    @property
    def text(self) -> str:
        cells = (f"`{self.name}`", self.class_name, self.dtype, self.sizes, self.cpu, self.h100)
        return "| " + " | ".join(cell.replace("|", "\\|") for cell in cells) + " |"

    @classmethod
    def parse(cls, text: str) -> Row:
        """The row of a line of the page."""
        cells = [cell.strip().replace("\\|", "|") for cell in text.strip()[1:-1].split(" | ")]
        return cls(cells[0].strip("`"), *cells[1:])


def read_row(folder: Path) -> Row:
    """The row of a case that was written, and opened in a clean process."""
    name = folder.name
    case = json.loads((folder / "case.json").read_text())
    if "error" in case:
        reason = reason_of(name, case["error"])
        return Row(name, "", "", "", reason, reason)
    outcome = json.loads((folder / "outcome.json").read_text())
    cells = (_cell(name, target, case, outcome) for target in ("cpu", "H100"))
    return Row(name, case.get("class", ""), case["dtype"] if outcome else "", _sizes(case), *cells)


def _cell(name: str, target: str, case: dict[str, Any], outcome: dict[str, Any]) -> str:
    if target in case["failures"]:
        return reason_of(name, case["failures"][target])
    result = outcome[target]
    if "error" in result:
        return reason_of(name, result["error"])
    runs = result["runs"]
    if all(run["is_equal"] for run in runs):
        return EQUAL
    worst = max(runs, key=lambda run: float(run["max_difference"]))
    size = f"differs by {worst['max_difference']:.0e} where values reach {worst['largest']:.0e}"
    if all(run["is_equal"] or run["is_equal_copied"] for run in runs):
        return f"{size}: {UNALIGNED}"
    return f"{size}: {DIFFERENT.get(name, 'not known why')}"


def is_difference(cell: str) -> bool:
    """Whether the cell tells of a run that gave other values than eager."""
    return cell.startswith("differs by ")


def _sizes(case: dict[str, Any]) -> str:
    """Of the inputs that vary; of several with the same sizes, the first."""
    if not case["sizes"]:
        return ""
    shown: dict[tuple[str, ...], str] = {}
    for name, shape in case["example"].items():
        sizes = (_times(shape), *(_times(shapes[name]) for shapes in case["sizes"]))
        if len(set(sizes)) > 1:
            shown.setdefault(sizes, name)
    if not shown:
        return "fixed"
    return "; ".join(f"{name} {sizes[0]} → {', '.join(sizes[1:])}" for sizes, name in shown.items())


def _times(shape: list[int]) -> str:
    return "×".join(map(str, shape))
