"""Experts as ONNX and ExecuTorch files, in float32 and with nothing set: those that docs/deploy.md lists."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

import pytest
import torch

import fakexport as fe
from fakexport.deploy.loaded_program import LoadedProgram
from fakexport.deploy.opening import open_artifact
from tests.architectures import ARCHITECTURES, Architecture

DOCUMENT = Path(__file__).parents[2] / "docs" / "deploy.md"
LISTED = re.search(
    r"^These model types work in float32 with ONNX and ExecuTorch: (.*?)\. `deepseek_v2`",
    DOCUMENT.read_text(encoding="utf-8"),
    re.DOTALL | re.MULTILINE,
)
WITH_EXPERTS = re.findall(r"`(\w+)`", LISTED[1]) if LISTED else []
KNOWN = {architecture.model_type: architecture for architecture in ARCHITECTURES}


@pytest.mark.exhaustive
@pytest.mark.zoo
@pytest.mark.parametrize("form", ["onnx", "executorch"])
@pytest.mark.parametrize("name", WITH_EXPERTS)
def test_experts_compute_what_the_program_does(name: str, form: Any, tmp_path: Path) -> None:
    architecture: Architecture = KNOWN[name]
    torch.manual_seed(0)
    model = architecture.build().float().eval()
    program = fe.export(architecture.source(tmp_path), dtype="float32")
    bound = fe.bind(program, model.state_dict())
    assert any("grouped_mm" in operator for operator in fe.summary(program).operators)
    path = tmp_path / ("m.pte" if form == "executorch" else "m.onnx")
    loaded = LoadedProgram(bound)
    ids = torch.randint(5, 20, (2, 16))
    inputs = {"input_ids": ids, "attention_mask": torch.ones_like(ids)}

    fe.compile(bound, path, to=form)
    found = open_artifact(path, form, trust=True)(inputs)

    with torch.no_grad():
        expected = loaded(inputs)
    name = next(iter(expected))
    torch.testing.assert_close(found[name], expected[name], atol=1e-6, rtol=0)


def test_the_documentation_names_them() -> None:
    assert len(WITH_EXPERTS) > 15
    assert set(WITH_EXPERTS) <= set(KNOWN)
