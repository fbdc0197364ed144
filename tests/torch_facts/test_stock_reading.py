"""What `_torch/stock_reading.py` relies on."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch
from torch.export.pt2_archive._package import package_pt2

from fakexport._torch.stock_reading import programs_of, reading_fault
from tests.forked import run_python
from tests.torchbind import LIBRARY

SAVED = """
import sys, torch
from tests.torchbind import Adds, fake_classes

with fake_classes():
    torch.export.save(torch.export.export(Adds(), (torch.ones(3),)), sys.argv[1])
"""

LOADED = """
import sys, torch
from fakexport._torch.stock_reading import reading_fault, unregistered_class

try:
    torch.export.load(sys.argv[1])
except RuntimeError as error:
    print(unregistered_class(error), unregistered_class(reading_fault(sys.argv[1], error)))
"""


@pytest.mark.skipif(not LIBRARY.exists(), reason="this torch comes without its test classes")
def test_torch_keeps_the_name_of_an_unregistered_class_to_its_log(tmp_path: Path):
    path = str(tmp_path / "model.pt2")
    saved = run_python(SAVED, path)

    done = run_python(LOADED, path)

    assert saved.returncode == 0, saved.stderr
    assert done.stdout == "None _TorchScriptTesting::_Foo\n"


def test_torch_gives_all_programs_of_a_file_by_name_and_its_export_load_only_one(tmp_path: Path):
    path = str(tmp_path / "two.pt2")
    programs = {name: torch.export.export(torch.nn.ReLU(), (torch.ones(3),)) for name in ("a", "b")}
    package_pt2(path, exported_programs=programs)

    assert sorted(programs_of(path)) == ["a", "b"]
    with pytest.raises(KeyError, match="model"):
        torch.export.load(path)


def test_an_error_with_nothing_behind_it_stays():
    error = ValueError("something else")

    assert reading_fault("nowhere.pt2", error) is error
