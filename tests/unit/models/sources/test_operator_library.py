"""Operators are registered by files and by modules, and a fault is one line."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch

from fakexport.models.sources import SourceError, load_operator_library

CODE = """
import torch
@torch.library.custom_op("{namespace}::twice", mutates_args=())
def twice(x: torch.Tensor) -> torch.Tensor:
    return x * 2
"""


def twice_of(namespace: str) -> list[float]:
    twice = getattr(torch.ops, namespace).twice
    found: list[float] = twice(torch.ones(2)).tolist()
    return found


def test_a_file_registers_its_operators(tmp_path: Path) -> None:
    path = tmp_path / "kernels.py"
    path.write_text(CODE.format(namespace="library_by_file"), encoding="utf-8")

    load_operator_library(str(path))

    assert twice_of("library_by_file") == [2.0, 2.0]


def test_a_module_of_the_working_directory_registers_its_operators(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    package = tmp_path / "package_of_operators"
    package.mkdir()
    (package / "kernels.py").write_text(CODE.format(namespace="library_by_module"), encoding="utf-8")
    monkeypatch.chdir(tmp_path)

    load_operator_library("package_of_operators.kernels")

    assert twice_of("library_by_module") == [2.0, 2.0]


@pytest.mark.parametrize(
    ("library", "message"),
    [
        ("libmine.so", "libmine.so: no such file"),
        ("mine.py", "mine.py: no such file"),
        ("folder/libmine", "folder/libmine: no such file"),
        ("lib mine", "lib mine: no such file"),
        ("nobody_has_this", "no module named 'nobody_has_this'"),
        ("json.nobody", "no module named 'json.nobody'"),
        ("broken_operators", "broken_operators cannot be imported: ZeroDivisionError: division by zero"),
        ("no_library.so", "no_library.so cannot be loaded: .*"),
    ],
)
def test_what_cannot_be_loaded_is_told_in_one_line(
    library: str, message: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "broken_operators.py").write_text("1 / 0", encoding="utf-8")
    (tmp_path / "no_library.so").write_text("text", encoding="utf-8")
    monkeypatch.chdir(tmp_path)

    with pytest.raises(SourceError, match=f"^{message}$"):
        load_operator_library(library)
