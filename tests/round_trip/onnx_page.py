"""The tables of `docs/onnx_from_transformers.md`, from the cases of one folder."""

from __future__ import annotations

import json
import re
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from .onnx_files import is_equal
from .row import EQUAL

__all__ = ["PAGE", "OnnxRow", "published", "render", "rows_in"]

PAGE = Path(__file__).parents[2] / "docs" / "onnx_from_transformers.md"
_HEADLINE = "## Measured\n"
_TEXT = """\
Measured with {versions}.
`python -m tests.round_trip --steps onnx,tokens,onnx-page` writes these tables, and
`tests/zoo/test_onnx_files.py` checks them.

**One call.** A small model of each architecture, made from its default config, is exported with
`--dynamic auto`, saved, loaded, bound and compiled to ONNX. ONNX Runtime runs it, without fakexport, at two
sets of sizes that differ from the export; in the second, a row is padded. "equal" means that all outputs
differ from eager mode by at most 1e-4, or by 1e-4 of the largest value if that is above 1. {equal} of {count}
architectures are equal.

**Generation.** A small model of each family is exported with `--workload chunk` and compiled with
`--names optimum`. `examples/onnx_generate.py` generates 24 tokens after prompts of 1 and of 5 tokens, and
after a batch of two prompts of 21 and 13 tokens. "equal" means the same tokens as `model.generate`.
{tokens} of {families} families generate the same tokens.

| architecture | class | one call |
| --- | --- | --- |
"""
_TOKENS = """
| family | generation |
| --- | --- |
"""
_ROW = re.compile(r"^\| `(?P<name>[^`]+)` \|(?: (?P<type>\w*) \|)? (?P<verdict>[^|]*) \|$", re.MULTILINE)


@dataclass(frozen=True)
class OnnxRow:
    """One row: an architecture with its class, or a family, which generates tokens (`type_name` is None)."""

    name: str
    type_name: str | None
    verdict: str

    @property
    def text(self) -> str:
        cells = [f"`{self.name}`", self.type_name, self.verdict.replace("|", "\\|")]
        return "| " + " | ".join(cell for cell in cells if cell is not None) + " |"


def rows_in(work: Path) -> list[OnnxRow]:
    """The rows of all cases in a folder, by name: those of one call come first."""
    calls = [_of_call(path.parent.name, _read(path)) for path in sorted(work.glob("*/onnx.json"))]
    return calls + [_of_tokens(path.parent.name, _read(path)) for path in sorted(work.glob("*/tokens.json"))]


def rows_with(work: Path) -> list[OnnxRow]:
    """The rows of the page, replaced by those of the cases in a folder, in the order of the page."""
    rows = {(row.type_name is None, row.name): row for row in (*published(), *rows_in(work))}
    return [rows[key] for key in sorted(rows)]


def _read(path: Path) -> dict[str, Any]:
    found: dict[str, Any] = json.loads(path.read_text())
    return found


def _of_call(name: str, found: dict[str, Any]) -> OnnxRow:
    if "error" in found:
        verdict = found["error"]
    elif is_equal(found):
        verdict = EQUAL
    else:
        verdict = f"differs by {found['max_difference']:.0e} where values reach {found['largest']:.0e}"
    return OnnxRow(name, found.get("class", ""), verdict)


def _of_tokens(name: str, found: dict[str, Any]) -> OnnxRow:
    return OnnxRow(name, None, found.get("error") or (EQUAL if found["is_equal"] else "different tokens"))


def render(rows: Sequence[OnnxRow], page: str, versions: str) -> str:
    """The page with other tables. What is above them is written by hand."""
    calls = [row for row in rows if row.type_name is not None]
    tokens = [row for row in rows if row.type_name is None]
    text = _TEXT.format(
        versions=versions,
        equal=sum(row.verdict == EQUAL for row in calls),
        count=len(calls),
        tokens=sum(row.verdict == EQUAL for row in tokens),
        families=len(tokens),
    )
    tables = ("".join(f"{row.text}\n" for row in some) for some in (calls, tokens))
    return page.partition(_HEADLINE)[0] + _HEADLINE + "\n" + text + _TOKENS.join(tables)


def published() -> list[OnnxRow]:
    """The rows of the page."""
    text = PAGE.read_text(encoding="utf-8").partition(_HEADLINE)[2]
    return [OnnxRow(found["name"], found["type"], found["verdict"]) for found in _ROW.finditer(text)]
