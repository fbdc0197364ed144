"""The text of the C++ project: complete, and refused where it would overwrite something."""

import re
from pathlib import Path

import pytest
import torch

import fakexport.deploy.cpp_project as cpp_project
from fakexport.deploy import DeployError
from fakexport.deploy.cpp_project import write_cpp_project
from fakexport.deploy.cpp_project.project import readme
from fakexport.deploy.signature import Signature
from fakexport.exporting.capture import export

TEMPLATE = Path(cpp_project.__file__).parent / "template"
SOURCES = {path.name for path in (TEMPLATE / "src").iterdir()}


def linear(**options):
    return export(lambda: torch.nn.Linear(4, 2), (torch.zeros(3, 4),), **options)


def test_every_source_is_compiled_and_told_of():
    built = set(re.findall(r"src/(\w+\.cpp)", (TEMPLATE / "CMakeLists.txt").read_text()))
    listed = re.findall(r"src/(\w+)\.(\*|\w+)", (TEMPLATE / "README.md").read_text())

    assert built == {name for name in SOURCES if name.endswith(".cpp")}
    assert {stem for stem, _ in listed} == {Path(name).stem for name in SOURCES}


def test_the_readme_tells_what_this_program_takes():
    sizes = {0: torch.export.Dim("batch", min=3, max=8)}
    signature = Signature.of(linear(dynamic_shapes=(sizes,)))
    symbol = signature.inputs[0].shape[0].symbol

    text = readme("before\n\n{signature}\n\nafter", [signature])

    assert text == (
        "before\n\n| input | dtype and shape |\n|---|---|\n"
        f"| `input` | `float32[{symbol}, 4]`, `{symbol}` at least 3 and at most 8 |\n"
        "\nOutputs: `output`.\n\nafter"
    )


@pytest.mark.parametrize("what", ["file", "link", "full folder", "nowhere"])
def test_nothing_is_written_over(what, tmp_path):
    target = tmp_path / "project"
    if what == "file":
        target.write_text("mine")
    elif what == "link":
        target.symlink_to(tmp_path)
    elif what == "full folder":
        target.mkdir()
        (target / "mine").write_text("mine")
    else:
        target = tmp_path / "none" / "project"
    before = sorted(tmp_path.rglob("*"))

    with pytest.raises(DeployError, match=re.escape(str(tmp_path))):
        write_cpp_project(linear(), target)

    assert sorted(tmp_path.rglob("*")) == before
