"""What `docs/round_trip.md` says of each architecture is so."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

from tests.architectures import ARCHITECTURES
from tests.round_trip.page import published
from tests.round_trip.row import Row, is_difference, read_row

pytest.importorskip("transformers")
pytestmark = pytest.mark.zoo

ROOT = Path(__file__).parents[2]
# One of each kind: a decoder, a model of images, a decoder with experts, an encoder, both in one, and a model
# of sound. By default tests/e2e/test_run_command.py makes a round trip like these, of a decoder.
QUICK, OTHERS = "llama", "vit,mixtral,albert,bart,data2vec-audio"
ROWS = published()


def round_trips(names, folder: Path) -> dict[str, Row]:
    """The rows of some architectures, written and opened in processes of their own."""
    command = [sys.executable, "-m", "tests.round_trip", "--work", str(folder), "--only", ",".join(names)]
    done = subprocess.run(
        [*command, "--steps", "write,open"], cwd=ROOT, capture_output=True, text=True, check=False
    )
    assert done.returncode == 0, done.stderr
    return {name: read_row(folder / name) for name in names}


def in_tens(names: list[str]) -> list[str]:
    """The names in groups that share the processes in which they are written and opened."""
    count = -(-len(names) // 10)
    return [",".join(names[start::count]) for start in range(count)]


OF_TRANSFORMERS = [name for name in ROWS if not name.startswith("timm:")]


@pytest.mark.timeout(1800)
@pytest.mark.parametrize(
    "names",
    [
        pytest.param(QUICK, marks=pytest.mark.slow),
        pytest.param(OTHERS, marks=pytest.mark.exhaustive),
        *(pytest.param(each, marks=pytest.mark.exhaustive) for each in in_tens(OF_TRANSFORMERS)),
    ],
)
def test_a_round_trip_ends_as_published(names, tmp_path):
    found = round_trips(names.split(","), tmp_path)

    different = [name for name, row in found.items() if without_amounts(row) != without_amounts(ROWS[name])]
    assert not different, [(found[name].text, ROWS[name].text) for name in different]


def without_amounts(row) -> tuple[str, ...]:
    """How much a kernel differs may depend on the machine; whether, and why, does not."""
    cells = (cell.partition(": ")[2] if is_difference(cell) else cell for cell in (row.cpu, row.h100))
    return (row.name, row.class_name, row.dtype, row.sizes, *cells)


def test_packages_of_models_cannot_be_imported_in_the_clean_process():
    program = (
        "from tests.round_trip.clean_process import PACKAGES, hide_packages\n"
        "hide_packages()\n"
        "for package in sorted(PACKAGES):\n"
        "    try: __import__(package)\n"
        "    except ModuleNotFoundError as error: assert error.name == package\n"
        "    else: raise AssertionError(package)\n"
    )

    subprocess.run([sys.executable, "-c", program], cwd=ROOT, check=True)


def test_every_row_is_of_an_architecture():
    known = {str(architecture) for architecture in ARCHITECTURES}

    assert {name for name in ROWS if not name.startswith("timm:")} <= known
    assert {*QUICK.split(","), *OTHERS.split(",")} <= ROWS.keys()
