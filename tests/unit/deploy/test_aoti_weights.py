"""What a file of weights must have for a package, what it may have, and what the package has itself."""

from __future__ import annotations

import shutil
from pathlib import Path

import pytest
import torch
from torch import nn

import fakexport as fe
from fakexport._torch.inductor import AotiPackage
from fakexport.container.reader import read_container
from fakexport.deploy import DeployError
from fakexport.deploy.aoti import compile_aoti, open_aoti
from fakexport.deploy.aoti.package import read_constants, read_metadata
from fakexport.deploy.weights_file import file_beside
from fakexport.weights import WeightsWarning

safetensors = pytest.importorskip("safetensors.torch")
pytestmark = [pytest.mark.slow, pytest.mark.skipif(shutil.which("g++") is None, reason="needs g++")]

IDS = torch.tensor([1, 5, 9])


class Rotary(nn.Module):
    """A tied weight, one that nothing uses, a literal and buffers of both kinds."""

    def __init__(self, shift: float = 1.0) -> None:
        super().__init__()
        self.shift = shift
        torch.manual_seed(0)
        self.embed, self.unused = nn.Embedding(10, 8), nn.Linear(2, 2, bias=False)
        self.head = nn.Linear(8, 10, bias=False)
        self.head.weight = self.embed.weight
        self.register_buffer("scale", torch.rand(8))
        self.register_buffer("frequencies", torch.arange(1.0, 9.0), persistent=False)

    def forward(self, ids: torch.Tensor) -> torch.Tensor:
        hidden = self.embed(ids) * self.scale * self.frequencies
        return self.head(hidden + torch.tensor([self.shift, 2.0, 3.0, 4.0, 5.0, 6.0, 7.0, 8.0]))


def state() -> dict[str, torch.Tensor]:
    return {name: tensor.clone() for name, tensor in Rotary().state_dict().items()}


@pytest.fixture(scope="module")
def compiled(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Without weights."""
    folder = tmp_path_factory.mktemp("rotary")
    program = fe.export(Rotary, (torch.zeros(3, dtype=torch.int64),))
    return compile_aoti(program, folder / "model.aoti.pt2", cache=folder / "cache").path


@pytest.fixture
def package(compiled: Path, tmp_path: Path) -> Path:
    """A copy, to put weights beside."""
    return Path(shutil.copy(compiled, tmp_path))


def assert_computes_as_eager(package: Path, checkpoint: Path | None = None) -> None:
    (got,) = open_aoti(package, checkpoint=checkpoint)({"ids": IDS}).values()
    torch.testing.assert_close(got, Rotary()(IDS).detach(), atol=2e-5, rtol=1e-5)


def test_the_package_has_the_constants_and_wants_only_weights(compiled: Path) -> None:
    with read_container(compiled, trust=True) as opened:
        metadata, constants = read_metadata(opened), read_constants(opened)

    (tied,) = [tensor for tensor in metadata.tensors if tensor.name != "scale"]
    assert {tied.name, *tied.aliases} == {"embed.weight", "head.weight"}
    assert set(metadata.unread) == {"unused.weight", *constants}
    assert constants.keys() == {"frequencies", "lifted_tensor_0"}
    assert torch.equal(constants["frequencies"], Rotary().frequencies)


@pytest.mark.parametrize("name", ["embed.weight", "head.weight", "both"])
def test_a_checkpoint_beside_needs_one_name_of_a_tied_weight_and_no_constants(
    package: Path, name: str
) -> None:
    tied = state()["embed.weight"]
    names = ("embed.weight", "head.weight") if name == "both" else (name,)
    held = {"scale": state()["scale"], **{name: tied.clone() for name in names}}

    safetensors.save_file(held, file_beside(package))

    assert_computes_as_eager(package)


def test_what_is_written_beside_has_all_that_the_code_wants(compiled: Path, tmp_path: Path) -> None:
    """torch's own loader is given that file, and calls code without constants: it crashes."""
    program = fe.bind(fe.export(Rotary, (torch.zeros(3, dtype=torch.int64),)), state())

    made = compile_aoti(
        program, tmp_path / "bound.aoti.pt2", weights="beside", cache=compiled.parent / "cache"
    )

    assert made.is_cached
    assert safetensors.load_file(made.files[1]).keys() == set(AotiPackage(made.path).constant_names)
    assert_computes_as_eager(made.path)
    assert_computes_as_eager(made.path, checkpoint=made.files[1])  # Without `unused.weight`.


def test_the_value_of_a_constant_is_that_of_the_program(package: Path) -> None:
    """As for `bind`: an old checkpoint that has a non-persistent buffer does not change it."""
    safetensors.save_file({**state_once(), "frequencies": torch.zeros(8)}, file_beside(package))

    assert_computes_as_eager(package)


def test_weights_of_another_compilation_are_not_taken_for_those_of_the_package(
    compiled: Path, package: Path
) -> None:
    """An interruption between the two files leaves an old package, and new weights that look the same."""
    changed = fe.export(lambda: Rotary(2.0), (torch.zeros(3, dtype=torch.int64),))
    cache, new = compiled.parent / "cache", package.with_name("new.aoti.pt2")
    made = compile_aoti(fe.bind(changed, state()), new, weights="beside", cache=cache)
    made.files[1].rename(file_beside(package))

    for checkpoint in (None, file_beside(package)):
        with pytest.raises(DeployError, match=r"was written for a different model\.aoti\.pt2"):
            open_aoti(package, checkpoint=checkpoint)
    again = compile_aoti(fe.export(Rotary, (torch.zeros(3, dtype=torch.int64),)), package, cache=cache)

    told = f"model.aoti.pt2 has no weights, and {file_beside(package)} was written for a different"
    assert again.notes[0].startswith(told)


def test_entries_that_the_program_does_not_know_are_told_of(package: Path) -> None:
    """`unused.weight` is one of its names."""
    more = {"older": torch.zeros(1), "old": torch.zeros(1)}
    safetensors.save_file({**state_once(), **more}, file_beside(package))

    with pytest.warns(WeightsWarning, match=r"FE704: .* has 2 entries that .*: old, older$"):
        assert_computes_as_eager(package)


def test_names_of_one_weight_must_not_differ(package: Path) -> None:
    safetensors.save_file(
        {**state(), "head.weight": torch.zeros(10, 8), "embed.weight": torch.ones(10, 8)},
        file_beside(package),
    )

    with pytest.raises(DeployError, match=r"weight and \w+\.weight differ, but are a single weight"):
        open_aoti(package)


def state_once() -> dict[str, torch.Tensor]:
    """As transformers saves it: a tied weight under one of its names."""
    return {name: tensor for name, tensor in state().items() if name != "head.weight"}
