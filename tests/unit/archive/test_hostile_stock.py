"""Archives without a manifest that somebody bent: described and loaded, or refused in one line."""

from __future__ import annotations

import json
import random
from pathlib import Path

import pytest
import torch
from torch import nn

from fakexport.archive import describe
from fakexport.archive.loading import load_archive
from fakexport.archive.stored_tensor import CONSTANTS_CONFIG, MODEL, WEIGHTS_CONFIG
from fakexport.files.container import ArchiveError
from fakexport.files.container.writer import write_container
from tests.unit.archive.described import records_of
from tests.unit.archive.test_hostile_documents import OTHER_VALUES, bent, places

TRIES = 60

pytestmark = pytest.mark.filterwarnings("ignore")


class Shifted(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.fc = nn.Linear(2, 1)
        self.register_buffer("shift", torch.ones(1), persistent=False)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.fc(x) + self.shift


@pytest.fixture(scope="module")
def records(tmp_path_factory: pytest.TempPathFactory) -> dict[str, bytes]:
    path = tmp_path_factory.mktemp("stock") / "stock.pt2"
    program = torch.export.export(Shifted(), (torch.zeros(3, 2),))
    program.example_inputs = None
    torch.export.save(program, path)
    return records_of(path)


@pytest.mark.parametrize("record", [WEIGHTS_CONFIG, CONSTANTS_CONFIG, MODEL])
@pytest.mark.parametrize("read", [describe, load_archive])
def test_a_bent_record_is_read_or_refused(
    read: object, record: str, records: dict[str, bytes], tmp_path: Path
) -> None:
    dice = random.Random(7)
    document = json.loads(records[record])
    everywhere = places(document)
    refusals = []
    for _ in range(TRIES):
        text = json.dumps(bent(document, dice.choice(everywhere), dice.choice([*OTHER_VALUES, "delete"])))
        write_container(tmp_path / "bent.pt2", {**records, record: text.encode()}, folder_name="stock")
        try:
            read(tmp_path / "bent.pt2")  # type: ignore[operator]
        except ArchiveError as error:
            refusals.append(str(error))
    assert refusals
    assert all(map(str.isprintable, refusals))


@pytest.mark.parametrize("record", [WEIGHTS_CONFIG, CONSTANTS_CONFIG, MODEL])
@pytest.mark.parametrize("read", [describe, load_archive])
def test_a_missing_record_is_named(
    read: object, record: str, records: dict[str, bytes], tmp_path: Path
) -> None:
    rest = {name: content for name, content in records.items() if name != record}
    write_container(tmp_path / "less.pt2", rest, folder_name="stock")

    with pytest.raises(ArchiveError, match=f"{record}: is missing"):
        read(tmp_path / "less.pt2")  # type: ignore[operator]
