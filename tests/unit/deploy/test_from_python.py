"""Compile, open and run from Python, as the command line does it."""

from pathlib import Path

import pytest
import torch
from torch import nn

import fakexport as fe
from fakexport.archive import Bundle
from fakexport.deploy import artifact_kind
from fakexport.files.container import ArchiveError


@pytest.fixture(scope="module")
def model():
    return nn.Sequential(nn.Linear(4, 3), nn.ReLU()).eval()


@pytest.fixture(scope="module")
def archive(model, tmp_path_factory):
    path = tmp_path_factory.mktemp("archive") / "model.pt2"
    fe.save(fe.export(lambda: nn.Sequential(nn.Linear(4, 3), nn.ReLU()).eval(), (torch.zeros(2, 4),)), path)
    return path


@pytest.mark.slow
def test_what_is_compiled_and_opened_gives_what_eager_gives(model, archive, tmp_path):
    lines: list[str] = []
    weights, x = dict(model.state_dict()), torch.randn(2, 4)

    made = fe.compile(archive, tmp_path / "model.onnx", weights, to="onnx", on_progress=lines.append)

    assert made.path == tmp_path / "model.onnx"
    assert lines
    (given,) = fe.open_program(made.path)({"input": x}).values()
    torch.testing.assert_close(given, model(x))


@pytest.mark.parametrize(
    ("options", "line"),
    [
        (
            {"to": "tflite"},
            "cannot compile to 'tflite'; the supported formats are aoti, cpp-project, executorch, onnx",
        ),
        ({"to": "onnx", "backend": "xnnpack"}, "onnx has no option backend"),
        ({"to": "executorch", "cache": "folder"}, "executorch has no option cache"),
    ],
)
def test_what_a_form_does_not_have_is_refused_before_anything_is_read(tmp_path, options, line):
    with pytest.raises(fe.InvalidValue) as raised:
        fe.compile(tmp_path / "absent.pt2", tmp_path / "out", **options)

    assert str(raised.value) == line


def test_what_is_for_programs_is_refused_for_a_compiled_file(tmp_path):
    (tmp_path / "m.onnx").write_bytes(b"\x08\x07" * 8)

    with pytest.raises(
        fe.InvalidValue, match=r"^devices applies only to exported programs, but .*m.onnx is compiled$"
    ):
        fe.open_program(tmp_path / "m.onnx", devices="cpu")


def test_devices_without_a_checkpoint_are_refused(archive, tmp_path):
    """They were ignored, so that a program went where the caller did not send it."""
    program, project = fe.load(archive), tmp_path / "project"
    bundle = Bundle({"prefill": program, "decode": program})
    for call in (
        lambda: fe.open_program(archive, devices="cpu"),
        lambda: fe.compile(bundle, project, to="cpp-project", devices="cpu"),
        lambda: fe.generate(bundle, [1], max_new_tokens=1, devices="cpu"),
        lambda: fe.compile(archive, tmp_path / "m.onnx", to="onnx", devices="cpu"),
    ):
        with pytest.raises(fe.InvalidValue, match=r"^devices can be chosen only together with a checkpoint"):
            call()
    assert not list(tmp_path.iterdir())


def test_a_program_without_weights_is_not_opened(archive):
    with pytest.raises(fe.WeightsNotBoundError):
        fe.open_program(archive)


class Looked(nn.Module):
    """Looks numbers up, and checks how many of them are 1."""

    def __init__(self) -> None:
        super().__init__()
        self.table = nn.Embedding(4, 2)

    def forward(self, ids: torch.Tensor, ones: torch.Tensor) -> torch.Tensor:
        torch._check((ids == 1).sum().item() == ones.sum().item())
        return self.table(ids)


def test_values_that_the_model_refuses_are_one_line_and_no_fault_of_fakexport() -> None:
    ids, ones = torch.tensor([0, 1]), torch.tensor([1])
    program = fe.export(Looked, (ids, ones))
    bound = fe.bind(program, Looked().state_dict())

    assert fe.run(bound, {"ids": ids, "ones": ones})["output"].shape == (2, 2)
    with pytest.raises(fe.DeployError, match="running the program failed: IndexError: index out of range"):
        fe.run(bound, {"ids": torch.tensor([1, 4]), "ones": ones})
    with pytest.raises(fe.DeployError, match=r"Runtime assertion failed .*\(test_from_python.py:\d+\)$"):
        fe.run(bound, {"ids": torch.tensor([1, 1]), "ones": ones})


@pytest.mark.parametrize("damage_at", [0, 28, 42])
def test_a_damaged_archive_is_a_refused_program(archive: Path, damage_at: int, tmp_path: Path) -> None:
    damaged = bytearray(archive.read_bytes())
    entry = damaged.rindex(b"PK\x01\x02")
    damaged[entry + damage_at : entry + damage_at + 4] = b"\xff" * 4
    path = tmp_path / "program.pt2"
    path.write_bytes(damaged)

    assert artifact_kind(path) == "program"
    with pytest.raises(ArchiveError):
        fe.load(path)
