"""Compiled forms refuse the sizes that a trace excludes, as the program does: in one line."""

from collections.abc import Callable, Mapping
from pathlib import Path

import pytest
import torch
from torch import Tensor, nn

import fakexport as fe
from fakexport.deploy import Artifact, InputMismatchError
from tests.cpp_runner import Runner

safetensors = pytest.importorskip("safetensors.torch")

pytestmark = [pytest.mark.slow, pytest.mark.xdist_group("cpp_runner")]


class EveryKind(nn.Module):
    """Each branch is taken by what is true of the example: parity, an order, a product, a root, a sum."""

    def __init__(self) -> None:
        super().__init__()
        self.linear = nn.Linear(4, 4)

    def forward(self, x: Tensor, y: Tensor, z: Tensor) -> Tensor:
        rows, columns = x.shape[0], x.shape[1]
        result = self.linear(x).sum(1)
        result = result if columns % 2 == 0 else -result
        result = result + y.sum() if columns < y.shape[1] else result - y.sum()
        result = result + z.sum() if rows * columns == z.shape[0] else result - z.sum()
        result = result * 2 if columns**0.5 < 5 else result
        result = result if z.is_contiguous() and not z.requires_grad else -result
        return result * 3 if (columns + y.shape[1]) % 3 == 0 else result


def inputs(rows: int, columns: int, length: int, flat: int) -> dict[str, Tensor]:
    generator = torch.Generator().manual_seed(rows)
    shapes = {"x": (rows, columns, 4), "y": (2, length, 4), "z": (flat, 4)}
    return {name: torch.randn(shape, generator=generator) for name, shape in shapes.items()}


FITTING = (inputs(3, 16, 17, 48), inputs(5, 4, 8, 20), inputs(2, 24, 27, 48))
REFUSED = {
    "parity": (
        inputs(3, 15, 18, 45),
        "`x` has size 15 in dimension 1, but the program needs x.shape[1] % 2 == 0",
    ),
    "order": (inputs(3, 16, 14, 48), "`x` has size 16 in dimension 1 and `y` has size 14 in dimension 1"),
    "product": (inputs(3, 16, 17, 50), "`z` has size 50 in dimension 0"),
    "root": (inputs(2, 26, 28, 52), "`x` has size 26 in dimension 1, but the program needs"),
    "sum": (inputs(3, 16, 18, 48), "`x` has size 16 in dimension 1 and `y` has size 18 in dimension 1"),
}


@pytest.fixture(scope="module")
def eager():
    torch.manual_seed(0)
    return EveryKind()


@pytest.fixture(scope="module")
def program(eager):
    sizes = ["x.0=2..8", "x.1=2..64", "y.1=2..64", "z.0=2..512"]
    example = inputs(3, 16, 17, 48)
    found = fe.export(EveryKind, tuple(example.values()), dynamic_shapes=sizes)
    return fe.bind(found, dict(eager.state_dict()))


def check(call: Callable[[Mapping[str, Tensor]], Mapping[str, Tensor]], eager: EveryKind) -> list[str]:
    """Results are eager's; returns what is said of the calls that must be refused."""
    for given in FITTING:
        with torch.no_grad():
            wanted = eager(**given)
        torch.testing.assert_close(next(iter(call(given).values())), wanted, rtol=1e-4, atol=1e-4)
    refusals = []
    for name, (given, words) in REFUSED.items():
        with pytest.raises(InputMismatchError) as refusal:
            call(given)
        assert words in str(refusal.value), name
        refusals.append(str(refusal.value))
    return refusals


def package(program: torch.export.ExportedProgram, folder: Path) -> Path:
    from fakexport.deploy.aoti import compile_aoti

    return compile_aoti(program, folder / "model.aoti.pt2", weights="beside").path


def test_native_code_and_the_cpp_program_refuse_in_the_same_words(program, eager, cpp_runner, tmp_path):
    from fakexport.deploy.aoti import open_aoti

    run = Runner(cpp_runner, package(program, tmp_path))
    refusals = check(open_aoti(run.package), eager)

    for given in FITTING:
        with torch.no_grad():
            wanted = eager(**given)
        got = run.outputs(given, tmp_path)
        torch.testing.assert_close(next(iter(got.values())), wanted, rtol=1e-4, atol=1e-4)
    for (given, _), words in zip(REFUSED.values(), refusals, strict=True):
        safetensors.save_file(given, tmp_path / "bad.safetensors")
        said = run.refusal("--inputs", tmp_path / "bad.safetensors", "--output", tmp_path / "no.safetensors")
        assert said.endswith(words)
        assert not (tmp_path / "no.safetensors").exists()


def test_executorch_refuses(program, eager, tmp_path):
    pytest.importorskip("executorch")
    from fakexport.deploy.executorch import compile_executorch, open_executorch

    opened: Artifact = open_executorch(compile_executorch(program, tmp_path / "model.pte").path)

    check(opened, eager)


def test_onnx_refuses(program, eager, tmp_path):
    pytest.importorskip("onnxruntime")
    from fakexport.deploy.onnx import compile_onnx, open_onnx

    opened: Artifact = open_onnx(compile_onnx(program, tmp_path / "model.onnx").path)

    check(opened, eager)
