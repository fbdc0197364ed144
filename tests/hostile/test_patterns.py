"""Regular expressions from files: usual ones are read, those that could take exponential time are not."""

from __future__ import annotations

import json
import re
from pathlib import Path

import pytest

from fakexport.files.documents import DocumentError, search_pattern
from fakexport.models.sources import SourceError
from fakexport.models.sources.adapters.adapter_config import AdapterFolder

WRITTEN = [
    "q_proj",
    "model.layers.0.self_attn.q_proj",
    r".*\.(q_proj|v_proj)$",
    r"^(?!.*visual).*(?:q_proj|k_proj|v_proj|o_proj|gate_proj|up_proj|down_proj).*",
    r"(?:.*?(?:language|text).*?(?:self_attn|attention|attn|mlp).*?(?:q_proj|k_proj).*?)"
    r"|(?:\bmodel\.layers\.[\d]{1,}\.(?:self_attn|mlp)\.(?:(?:q_proj|k_proj)))",
    r"layers\.(1?[0-9]|2[0-3])\..*proj",
    r"(transformer\.)?h\.\d+\.attn\.c_attn",
]
ENDLESS = [
    "(a+)+",
    "(a|a)*",
    "(.*)*x",
    "((ab)*)*c",
    "(?:a{1,100}){1,100}b",
    r"(\w+\.)+proj",
    r"(a)\1",
    ".*a.*b.*c.*d.*e",
    "(?=(a+)+b)x",
    "(((a*)))*",
    "(a?){300}a{300}",
    "(",
    "a{99999999999999}",
    "x" * 3000,
]


@pytest.mark.parametrize("pattern", WRITTEN)
def test_what_people_write_is_read(pattern: str) -> None:
    assert search_pattern(pattern) == pattern


@pytest.mark.parametrize("pattern", ENDLESS)
def test_what_may_take_for_ever_is_refused(pattern: str) -> None:
    with pytest.raises(DocumentError):
        search_pattern(pattern)


@pytest.mark.parametrize("pattern", [*WRITTEN, ".*a.*a.*a.*b"])
def test_what_is_read_ends_for_the_worst_names(pattern: str) -> None:
    """Of one that doubles its time with each character, no test would see the end."""
    assert search_pattern(pattern)
    for name in ("a" * 100, "layers." * 20, "language.attn." * 6, "0" * 100):
        assert not re.match(rf"(.*\.)?({pattern})!$", name)


@pytest.mark.parametrize(
    ("name", "value"),
    [
        ("alpha_pattern", {"(a+)+": 8}),
        ("alpha_pattern", {"q_proj": "8"}),
        ("alpha_pattern", 8),
        ("rank_pattern", {"q_proj": 0}),
        ("target_modules", "(.*)*x"),
        ("target_modules", ["(.*)*x"]),
        ("exclude_modules", "(.*)*x"),
        ("lora_alpha", "8"),
        ("lora_alpha", [8]),
        ("r", -1),
        ("r", 1e9),
    ],
)
def test_an_adapter_with_another_value_is_one_line(name: str, value: object, tmp_path: Path) -> None:
    settings = {"peft_type": "LORA", "r": 8, "lora_alpha": 16, "target_modules": ["q_proj"], name: value}
    (tmp_path / "adapter_config.json").write_text(json.dumps(settings))

    with pytest.raises(SourceError, match=rf"adapter_config\.json: {name}") as raised:
        AdapterFolder.read(tmp_path)

    assert "\n" not in str(raised.value)


@pytest.mark.parametrize("settings", [{"peft_type": "LORA", "own\x7fname": 1}, {"peft_type": "\x1b[2J"}])
def test_what_is_said_of_an_adapter_can_be_shown(settings: dict[str, object], tmp_path: Path) -> None:
    (tmp_path / "adapter_config.json").write_text(json.dumps(settings))

    with pytest.raises(SourceError) as raised:
        AdapterFolder.read(tmp_path)

    assert str(raised.value).isprintable()


def test_an_adapter_as_peft_writes_it_is_read(tmp_path: Path) -> None:
    settings = {
        "peft_type": "LORA",
        "r": 8,
        "lora_alpha": 16.5,
        "target_modules": "all-linear",
        "exclude_modules": None,
        "layers_pattern": None,
        "alpha_pattern": {r"h\.\d+\.attn": 4},
        "rank_pattern": {},
    }
    (tmp_path / "adapter_config.json").write_text(json.dumps(settings))

    assert AdapterFolder.read(tmp_path).settings["lora_alpha"] == 16.5
