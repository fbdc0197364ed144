"""Targets that are neither CPU nor CUDA."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

import fakexport as fe

TYPES = {"PVC-1550": "xpu:0", "M2-Ultra": "mps:0"}


@pytest.mark.parametrize("target", TYPES)
def test_the_mlp_exports(target):
    report = fe.check("examples/mlp.py:factory", target=[target])

    (verdict,) = report.verdicts
    assert verdict.is_exportable
    assert verdict.summary.devices == (TYPES[target],)


@pytest.fixture
def small_vit(tmp_path: Path) -> str:
    config = {
        "model_type": "vit",
        "architectures": ["ViTForImageClassification"],
        "num_hidden_layers": 2,
        "hidden_size": 64,
        "intermediate_size": 128,
        "num_attention_heads": 4,
        "image_size": 32,
        "patch_size": 8,
    }
    path = tmp_path / "vit.json"
    path.write_text(json.dumps(config))
    return f"hf:{path}"


@pytest.mark.slow
@pytest.mark.parametrize("target", ["PVC-1550", "M2-Ultra"])
def test_a_vit_exports_with_a_dynamic_batch(small_vit, target):
    report = fe.check(small_vit, target=["cpu", target], dynamic_shapes=["pixel_values.0=2..64"])

    assert report.is_clean
    on_cpu, elsewhere = (verdict.summary for verdict in report.verdicts)
    assert elsewhere.devices == (TYPES[target],)
    assert elsewhere.parameters.elements == on_cpu.parameters.elements
    (bounds,) = elsewhere.range_constraints.values()
    assert (bounds.lower, bounds.upper) == (2, 64)
