"""Untrusted configs: what no published model comes near is refused by name; nothing is fetched or run."""

from __future__ import annotations

import json
import socket
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import nn

import fakexport as fe
from fakexport.models.sources import SourceError, resolve
from fakexport.models.sources.transformers import config_limits
from fakexport.models.sources.transformers.config_limits import MOST_LAYERS

TINY = {
    "model_type": "llama",
    "num_hidden_layers": 1,
    "hidden_size": 8,
    "intermediate_size": 8,
    "num_attention_heads": 2,
    "num_key_value_heads": 2,
    "vocab_size": 16,
}


@pytest.fixture(autouse=True)
def no_network(monkeypatch: pytest.MonkeyPatch) -> list[Any]:
    """Where something wanted to connect to; must stay empty."""
    wanted: list[Any] = []

    def refuse(*arguments: Any, **_: Any) -> None:
        wanted.append(arguments)
        raise OSError("no network in this test")

    monkeypatch.setattr(socket, "getaddrinfo", refuse)
    return wanted


def spec_of(folder: Path, **settings: object) -> str:
    (folder / "config.json").write_text(json.dumps({**TINY, **settings}))
    return f"hf:{folder}/config.json"


def nested(depth: int) -> object:
    return [nested(depth - 1)] if depth else 1


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        ({"num_hidden_layers": 100_000}, f"`num_hidden_layers` is more than the limit of {MOST_LAYERS:,}"),
        ({"num_hidden_layers": 10**9}, f"`num_hidden_layers` is more than the limit of {MOST_LAYERS:,}"),
        ({"num_hidden_layers": -(10**9)}, f"`num_hidden_layers` is more than the limit of {MOST_LAYERS:,}"),
        ({"model_type": "swin", "depths": [2, 10**9]}, f"`depths` is more than the limit of {MOST_LAYERS:,}"),
        (
            {"model_type": "llava", "text_config": {"num_hidden_layers": 10**6}},
            "`text_config.num_hidden_layers`",
        ),
        ({"hidden_size": 10**12}, "`hidden_size` is more than the limit of 67,108,864"),
        ({"num_attention_heads": 10**9}, "`num_attention_heads` is more than the limit of 67,108,864"),
        ({"extra": nested(30)}, "`extra` is nested deeper than 16 levels"),
        ({"extra": [0] * 300_000}, "more than 200,000 values"),
        (
            {"attn_implementation": "stranger/kernel"},
            "refers to code on the hub, which fakexport does not run",
        ),
        (
            {"_attn_implementation": "stranger/kernel"},
            "refers to code on the hub, which fakexport does not run",
        ),
        (
            {"text_config": {"experts_implementation": "a/b"}},
            "refers to code on the hub, which fakexport does not run",
        ),
    ],
    ids=lambda value: str(value)[:40] if isinstance(value, dict) else "",
)
def test_a_config_beyond_all_models_is_refused_by_name(settings, message, tmp_path):
    with pytest.raises(SourceError) as caught:
        resolve(spec_of(tmp_path, **settings))

    assert message in str(caught.value)
    assert "\n" not in str(caught.value)


def test_the_modules_that_a_config_makes_are_counted(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(config_limits, "MOST_MODULES", 20)
    source = resolve(spec_of(tmp_path, num_hidden_layers=4))

    with torch.device("meta"), pytest.raises(SourceError, match="more than 20 modules"):
        source.factory()


@pytest.mark.parametrize("model_type", ["vitpose", "upernet"])
def test_a_backbone_on_the_hub_is_not_fetched(model_type, tmp_path, no_network):
    spec = spec_of(
        tmp_path, model_type=model_type, backbone="stranger/backbone", use_pretrained_backbone=True
    )

    with pytest.raises(SourceError):
        resolve(spec)

    assert no_network == []


def test_the_config_beside_a_checkpoint_cannot_keep_bind_busy(tmp_path: Path) -> None:
    program = fe.export(lambda: nn.Linear(2, 2), (torch.zeros(1, 2),))
    torch.save({"other": torch.zeros(1)}, tmp_path / "pytorch_model.bin")
    spec_of(tmp_path, num_hidden_layers=10**9)

    report = fe.verify_weights(program, tmp_path)

    assert not report.is_bindable
