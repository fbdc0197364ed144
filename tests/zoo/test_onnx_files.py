"""What `docs/onnx_from_transformers.md` says of architectures in ONNX Runtime is so."""

from __future__ import annotations

import re
import subprocess
import sys
from pathlib import Path

import pytest

pytest.importorskip("transformers")
pytest.importorskip("onnxruntime")
pytest.importorskip("onnxscript")

from tests.round_trip.onnx_page import PAGE, OnnxRow, published, rows_in
from tests.round_trip.row import EQUAL

pytestmark = pytest.mark.zoo

ROOT = Path(__file__).parents[2]
ROWS = published()
CALLS = {row.name: row for row in ROWS if row.type_name is not None}
TOKENS = {row.name: row for row in ROWS if row.type_name is None}


def rows_of(step: str, names: str, folder: Path) -> dict[str, OnnxRow]:
    command = [sys.executable, "-m", "tests.round_trip", "--work", str(folder), "--only", names]
    done = subprocess.run([*command, "--steps", step], cwd=ROOT, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    return {row.name: row for row in rows_in(folder)}


def in_tens(names: list[str]) -> list[str]:
    count = -(-len(names) // 10)
    return [",".join(names[start::count]) for start in range(count)]


@pytest.mark.timeout(1800)
@pytest.mark.parametrize(
    "names",
    [
        pytest.param("t5", marks=pytest.mark.slow),
        *(pytest.param(each, marks=pytest.mark.exhaustive) for each in in_tens(list(CALLS))),
    ],
)
def test_one_call_returns_what_the_page_says(names: str, tmp_path: Path) -> None:
    found = rows_of("onnx", names, tmp_path)

    assert {name: row.verdict for name, row in found.items()} == {
        name: CALLS[name].verdict for name in names.split(",")
    }


@pytest.mark.timeout(1800)
@pytest.mark.parametrize(
    "names",
    [
        pytest.param("gemma3", marks=pytest.mark.slow),
        *(pytest.param(each, marks=pytest.mark.exhaustive) for each in in_tens(list(TOKENS))),
    ],
)
def test_a_loop_of_numpy_generates_what_the_page_says(names: str, tmp_path: Path) -> None:
    found = rows_of("tokens", names, tmp_path)

    assert {name: row.verdict for name, row in found.items()} == {
        name: TOKENS[name].verdict for name in names.split(",")
    }


def test_the_counts_of_the_page_are_those_of_its_tables() -> None:
    text = " ".join(PAGE.read_text(encoding="utf-8").split())

    for rows, what in ((CALLS, "architectures are equal"), (TOKENS, "families generate the same tokens")):
        equal = sum(row.verdict == EQUAL for row in rows.values())
        assert re.search(rf"\b{equal} of {len(rows)} {what}", text)
        assert equal
