"""Experts in every form: grouped products by an operator of torch or of transformers, nothing to set."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
import torch
import transformers
from torch import nn
from torch.export import ExportedProgram
from transformers.integrations.moe import _grouped_mm_fallback

import fakexport as fe
from fakexport._torch.kernels.grouped_products import TRANSFORMERS, composed_product
from fakexport.deploy.composed_program import IN_PYTHON, composed
from fakexport.deploy.executorch.compiling import WITHOUT_KERNEL
from fakexport.deploy.onnx import compile_onnx, open_onnx
from fakexport.deploy.opening import open_artifact

MIXTRAL = {
    "hidden_size": 32,
    "intermediate_size": 48,
    "num_hidden_layers": 1,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "vocab_size": 64,
    "num_local_experts": 4,
    "use_cache": False,
}


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("mixtral")


@pytest.fixture(scope="module")
def model(folder: Path) -> nn.Module:
    torch.manual_seed(0)
    model = transformers.MixtralForCausalLM(transformers.MixtralConfig(**MIXTRAL)).eval()
    model.save_pretrained(folder)
    return model


@pytest.fixture(scope="module")
def program(model: nn.Module, folder: Path) -> ExportedProgram:
    """Without weights, of any sizes; the experts are products by the operator of transformers."""
    program = fe.export(f"hf:{folder}", dynamic_shapes="auto")
    assert operators(program)[TRANSFORMERS] == 2
    fe.save(program, folder / "program.pt2")
    return program


@pytest.fixture(scope="module")
def bound(program: ExportedProgram, folder: Path) -> ExportedProgram:
    return fe.bind(program, folder)


@pytest.fixture(scope="module")
def inputs() -> dict[str, torch.Tensor]:
    """Of sizes that the export did not see."""
    ids = torch.randint(0, 64, (3, 7), generator=torch.Generator().manual_seed(0))
    return {"input_ids": ids, "attention_mask": torch.ones_like(ids)}


@pytest.fixture(scope="module")
def expected(model: nn.Module, inputs: dict[str, torch.Tensor]) -> torch.Tensor:
    with torch.no_grad():
        logits: torch.Tensor = model(**inputs).logits
    return logits


def operators(program: ExportedProgram) -> dict[str, int]:
    return dict(fe.summary(program).operators)


@pytest.mark.parametrize("ends", [[2, 2, 5], [0, 0, 0], [5, 5, 5], [1, 3, 4], [0, 5, 5]])
def test_the_product_is_that_of_transformers(ends: list[int]) -> None:
    """Groups without rows, and rows beyond the last group. What is not a number stays in its row."""
    generator = torch.Generator().manual_seed(0)
    rows, matrices = torch.randn(5, 6, generator=generator), torch.randn(3, 6, 4, generator=generator)
    rows[1] = float("nan")
    offs = torch.tensor(ends, dtype=torch.int32)

    found = composed_product(rows, matrices, offs)

    torch.testing.assert_close(found, _grouped_mm_fallback(rows, matrices, offs), equal_nan=True)


def test_the_product_is_that_of_torch() -> None:
    rows, matrices = torch.randn(6, 16).bfloat16(), torch.randn(3, 16, 8).bfloat16()
    offs = torch.tensor([2, 2, 6], dtype=torch.int32)

    found = composed_product(rows, matrices, offs)

    torch.testing.assert_close(found, torch.nn.functional.grouped_mm(rows, matrices, offs=offs))


def test_a_composed_program_computes_the_same_at_other_sizes(
    bound: ExportedProgram, inputs: dict[str, torch.Tensor], expected: torch.Tensor
) -> None:
    made = composed(bound, IN_PYTHON)

    assert TRANSFORMERS not in operators(made)
    torch.testing.assert_close(made.module()(**inputs)["logits"], expected)
    assert TRANSFORMERS in operators(bound)
    assert composed(made, IN_PYTHON) is made


def test_for_executorch_more_is_composed(
    bound: ExportedProgram, inputs: dict[str, torch.Tensor], expected: torch.Tensor
) -> None:
    made = composed(bound, WITHOUT_KERNEL)

    assert not set(WITHOUT_KERNEL) & set(operators(made))
    torch.testing.assert_close(made.module()(**inputs)["logits"], expected)


class Counts(nn.Module):
    """Counts and sorts what is not whole numbers in bins of their own, nor free in its order."""

    def forward(self, x: torch.Tensor, numbers: torch.Tensor) -> Any:
        batches = torch.zeros(2, 8, 8, dtype=torch.bfloat16)
        return (
            torch.histc(x, 4, 0, 3),
            torch.histc(numbers.float(), 4, 0, 7),
            torch.sort(numbers, stable=True)[1],
            torch.sort(numbers, descending=True)[0],
            torch.sort(x[None, :])[0],
            torch.nn.functional.grouped_mm(batches, batches),
        )


def test_what_means_something_else_is_left_as_it_is() -> None:
    program = fe.export(Counts, (torch.rand(8), torch.arange(8)))

    assert composed(program, WITHOUT_KERNEL) is program


@pytest.mark.slow
def test_onnx_multiplies_each_row_once(
    program: ExportedProgram,
    model: nn.Module,
    inputs: dict[str, torch.Tensor],
    expected: torch.Tensor,
    tmp_path: Path,
    torchlib_read_once: None,
) -> None:
    compile_onnx(program, tmp_path / "m.onnx")

    found = open_onnx(tmp_path / "m.onnx", checkpoint=dict(model.state_dict()))(inputs)

    torch.testing.assert_close(found["logits"], expected, atol=2e-6, rtol=0)


@pytest.mark.slow
@pytest.mark.parametrize("form", ["aoti", "executorch"])
def test_compiled_experts_compute_the_same(form: Any, model: nn.Module, folder: Path, tmp_path: Path) -> None:
    """At the example's sizes: ExecuTorch needs bounds for others."""
    program = fe.export(f"hf:{folder}")
    path = tmp_path / ("m.pte" if form == "executorch" else "m.pt2")
    ids = torch.randint(0, 64, (2, 16), generator=torch.Generator().manual_seed(1))
    inputs = {"input_ids": ids, "attention_mask": torch.ones_like(ids)}

    fe.compile(program, path, folder, to=form)
    found = open_artifact(path, form, trust=True)(inputs)

    with torch.no_grad():
        torch.testing.assert_close(found["logits"], model(**inputs).logits, atol=2e-6, rtol=0)


_WITHOUT = """
import sys
sys.modules["transformers"] = None  # Not installed.
import torch, fakexport as fe
program = fe.bind(fe.load(sys.argv[1] + "/program.pt2"), sys.argv[1])
ids = torch.tensor([[1, 2, 3], [4, 5, 6]])
torch.save(program.module()(input_ids=ids, attention_mask=torch.ones_like(ids))["logits"], sys.argv[2])
"""


@pytest.mark.slow
def test_a_program_runs_without_transformers(
    program: ExportedProgram, model: nn.Module, folder: Path, tmp_path: Path
) -> None:
    out = tmp_path / "out.pt"

    subprocess.run([sys.executable, "-c", _WITHOUT, str(folder), str(out)], check=True)

    ids = torch.tensor([[1, 2, 3], [4, 5, 6]])
    with torch.no_grad():
        torch.testing.assert_close(torch.load(out), model(ids).logits)


@pytest.mark.slow
def test_a_program_runs_where_transformers_is_not_imported_yet(
    program: ExportedProgram, folder: Path, tmp_path: Path
) -> None:
    """transformers defines the operator, and can be used afterwards."""
    script = (
        "import sys, fakexport as fe; fe.load(sys.argv[1]); import transformers.integrations.moe;"
        "transformers.MixtralForCausalLM"
    )

    subprocess.run([sys.executable, "-c", script, str(folder / "program.pt2")], check=True)
