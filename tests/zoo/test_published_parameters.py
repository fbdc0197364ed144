"""Published models have as many parameters as their publishers say, in the dtype of their config."""

from __future__ import annotations

import json
import tomllib
from pathlib import Path
from typing import Any

import pytest
import torch

import fakexport as fe
from fakexport.checking import inspect

pytestmark = pytest.mark.slow

TABLE = tomllib.loads(Path(__file__).with_name("published_parameters.toml").read_text())
MODELS: dict[str, tuple[int, dict[str, Any]]] = {}
for model_type, models in TABLE.items():
    shared = models.pop("config")
    for name, entry in models.items():
        config = {"model_type": model_type, **shared, **entry}
        published = config.pop("hub", None) or config.pop("card")
        MODELS[name] = published - config.pop("left_out", 0), config

SAMPLE = ["mistralai/Mixtral-8x7B-v0.1", "google/flan-t5-small", "openai/whisper-tiny"]
# Decoders like those.
MORE = [
    "meta-llama/Llama-3.2-1B", "google/gemma-2-2b", "openai-community/gpt2",
    "Qwen/Qwen2.5-0.5B", "Qwen/Qwen3-8B", "Qwen/Qwen3-30B-A3B", "mistralai/Mistral-7B-v0.3",
    "microsoft/phi-4", "EleutherAI/pythia-1b",
]  # fmt: skip


def source(name: str, folder: Path) -> str:
    path = folder / "config.json"
    path.write_text(json.dumps(MODELS[name][1]))
    return f"hf:{path}"


@pytest.mark.parametrize("model_type", TABLE)
def test_the_number_of_parameters_is_the_published_one(model_type: str, tmp_path: Path) -> None:
    names = [name for name, (_, config) in MODELS.items() if config["model_type"] == model_type]

    found = {name: inspect(source(name, tmp_path)) for name in names}

    assert {name: model.total_parameters for name, model in found.items()} == {
        name: MODELS[name][0] for name in names
    }
    for name, model in found.items():
        dtype = getattr(torch, MODELS[name][1].get("dtype", "float32"))
        of_buffers = model.total_bytes - model.total_parameters * dtype.itemsize
        assert 0 <= of_buffers <= 8 * model.total_buffers


@pytest.mark.parametrize(
    "name",
    [
        *(pytest.param(name, marks=pytest.mark.chosen) for name in SAMPLE),
        *(pytest.param(name, marks=pytest.mark.exhaustive) for name in MORE),
    ],
)
def test_it_exports_with_dynamic_dimensions(name: str, tmp_path: Path) -> None:
    report = fe.check(source(name, tmp_path), target="8xH100", device_map="balanced", dynamic_shapes="auto")

    assert report.is_clean, report.diagnostics
    (verdict,) = report.verdicts
    assert verdict.summary is not None
    assert verdict.summary.parameters.elements == MODELS[name][0]


def test_at_least_60_models_are_in_the_table() -> None:
    assert len(MODELS) >= 60
