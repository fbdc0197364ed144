"""The configs in `examples/configs` have the sizes of the published models."""

import re
from functools import cache
from pathlib import Path

import pytest
import torch

from fakexport.models.sources import resolve

CONFIGS = Path(__file__).parents[4] / "examples" / "configs"
ROW = re.compile(r"\| `(?P<file>[^`]+)` \| (?P<hub_id>\S+) \| (?P<parameters>[\d,]+) \|")
TABLE = {
    row["file"]: int(row["parameters"].replace(",", ""))
    for row in ROW.finditer((CONFIGS / "README.md").read_text())
}

# What the models' cards and papers say, in billions.
PUBLISHED = {
    "bert-large.json": 0.336,
    "blenderbot.json": 2.7,
    "deepseek-v3.json": 671,
    "dinov2-large.json": 0.304,
    "gpt-oss-120b.json": 116.8,
    "llama-2-13b.json": 13.02,
    "llama-3.1-405b.json": 405.9,
    "llama-3.1-70b.json": 70.6,
    "llama-3.1-8b.json": 8.03,
    "llama-3.2-1b.json": 1.236,
    "llama-4-scout.json": 109,
    "mixtral-8x22b.json": 140.6,
    "qwen3-235b-a22b.json": 235,
    "vit-l.json": 0.304,
    "wav2vec2-large.json": 0.315,
    "whisper-large-v3.json": 1.54,
}
OF_DIFFUSERS = {"flux1-dev.json": 11.9, "sdxl-unet.json": 2.57, "sdxl-vae.json": 0.0837}


def test_the_table_lists_every_config():
    assert (
        TABLE.keys()
        == PUBLISHED.keys() | OF_DIFFUSERS.keys()
        == {path.name for path in CONFIGS.glob("*.json")}
    )


@cache
def built(name):
    """The source of a config, and its model on meta."""
    source = resolve(f"hf:{CONFIGS / name}")
    with torch.device("meta"):
        return source, source.factory()


@pytest.mark.parametrize("name", sorted(PUBLISHED))
def test_a_config_has_the_published_number_of_parameters(name):
    source, module = built(name)

    parameters = sum(parameter.numel() for parameter in module.parameters())
    assert parameters == TABLE[name]
    assert parameters / 1e9 == pytest.approx(PUBLISHED[name], rel=0.004)
    assert source.assumptions == ()


@pytest.mark.parametrize("name", sorted(OF_DIFFUSERS))
def test_a_config_of_diffusers_has_the_published_number_of_parameters(name):
    pytest.importorskip("diffusers")
    with torch.device("meta"):
        module = resolve(f"diffusers:{CONFIGS / name}").factory()

    parameters = sum(parameter.numel() for parameter in module.parameters())
    assert parameters == TABLE[name]
    assert parameters / 1e9 == pytest.approx(OF_DIFFUSERS[name], rel=0.004)


@pytest.mark.parametrize("name", sorted(PUBLISHED))
def test_every_input_of_a_config_can_be_derived(name):
    source, module = built(name)

    inputs = source.example_inputs(module, "meta", None)

    assert module.main_input_name in inputs.kwargs
    assert inputs.assumptions == ()
