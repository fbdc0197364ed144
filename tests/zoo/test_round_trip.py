"""What `docs/round_trip.md` says of each architecture is so."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest
import torch

from tests.architectures import ARCHITECTURES
from tests.round_trip.page import published
from tests.round_trip.row import EQUAL, Row, is_difference, read_row
from tests.round_trip.values import real_inputs

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


def test_a_row_comes_back_from_the_page_as_it_went():
    row = Row("a-b", "Class", "float32", "x 2×3 → 4×5, 6×7", "equal", "a | b: c")

    assert Row.parse(row.text) == row


def test_floats_that_are_one_number_everywhere_get_values():
    sizes = {"pixel_values": (3, 4), "weights": (2, 3)}
    template = {"pixel_values": torch.full((2, 4), 0.5), "weights": torch.tensor([[0.0, 1.0, 2.0]] * 2)}

    inputs = real_inputs(template, sizes, None, seed=1, is_padded=False)

    assert inputs["pixel_values"].unique().numel() == 12
    assert inputs["weights"][:, 1:].tolist() == [[1.0, 2.0]] * 2
    assert (inputs["weights"][:, 0] != 0).all()


def test_places_between_patches_stay_what_they_are():
    template = {"image_interp_indices": torch.tensor([[0, 1], [2, 3]])}

    inputs = real_inputs(template, {"image_interp_indices": (2, 2)}, None, seed=1, is_padded=False)

    assert inputs["image_interp_indices"].tolist() == [[0, 1], [2, 3]]


def test_every_row_is_of_an_architecture():
    known = {str(architecture) for architecture in ARCHITECTURES}

    assert {name for name in ROWS if not name.startswith("timm:")} <= known
    assert {*QUICK.split(","), *OTHERS.split(",")} <= ROWS.keys()


def test_most_architectures_give_what_eager_gives():
    equal = [row for row in ROWS.values() if not row.name.startswith("timm:") and row.cpu == EQUAL]

    assert len(equal) >= 350


def test_no_reason_is_missing():
    assert [row.name for row in ROWS.values() if "not known why" in row.cpu + row.h100] == []
