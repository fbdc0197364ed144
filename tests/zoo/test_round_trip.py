"""What `docs/round_trip.md` says of each architecture is so."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

from tests.architectures import ARCHITECTURES
from tests.round_trip.page import published
from tests.round_trip.row import EQUAL, is_difference, read_row

pytest.importorskip("transformers")
pytestmark = pytest.mark.zoo

ROOT = Path(__file__).parents[2]
# One of each kind: decoder, decoder with experts, encoder, both, image, image to boxes, sound.
QUICK = ("llama", "mixtral", "albert", "bart", "beit", "detr", "data2vec-audio")
ROWS = published()


def round_trip(name: str, folder: Path):
    """The row of one architecture, in processes of their own."""
    command = [sys.executable, "-m", "tests.round_trip", "--work", str(folder), "--only", name]
    done = subprocess.run(
        [*command, "--steps", "write,open"], cwd=ROOT, capture_output=True, text=True, check=False
    )
    assert done.returncode == 0, done.stderr
    return read_row(folder / name)


@pytest.mark.parametrize(
    "name",
    [
        pytest.param(name, marks=() if name in QUICK else pytest.mark.slow)
        for name in ROWS
        if not name.startswith("timm:")
    ],
)
def test_a_round_trip_ends_as_published(name, tmp_path):
    row = round_trip(name, tmp_path)

    assert without_amounts(row) == without_amounts(ROWS[name])


def without_amounts(row) -> tuple[str, ...]:
    """How much a kernel differs may depend on the machine; whether, and why, does not."""
    cells = (cell.partition(": ")[2] if is_difference(cell) else cell for cell in (row.cpu, row.h100))
    return (row.name, row.class_name, row.dtype, row.sizes, *cells)


def test_every_row_is_of_an_architecture():
    known = {str(architecture) for architecture in ARCHITECTURES}

    assert {name for name in ROWS if not name.startswith("timm:")} <= known
    assert set(QUICK) <= ROWS.keys()


def test_sixty_architectures_give_what_eager_gives():
    equal = [row for row in ROWS.values() if not row.name.startswith("timm:") and row.cpu == EQUAL]

    assert len(equal) >= 60


def test_no_reason_is_missing():
    assert [row.name for row in ROWS.values() if "not known why" in row.cpu + row.h100] == []
