"""Tokens of small models of many families: those of transformers, or the reason that the page says."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from tests.generation.agreement import agreement
from tests.generation.families import FAMILIES, Family
from tests.generation.page import PAGE, rows_on, tried


@pytest.mark.parametrize(
    "family",
    [pytest.param(family, id=family.name, marks=getattr(pytest.mark, family.level)) for family in FAMILIES],
)
def test_a_family_generates_what_the_page_says(family: Family, tmp_path: Path) -> None:
    row = tried(family, tmp_path)

    assert rows_on(PAGE.read_text(encoding="utf-8"))[family.name] == row.verdict
    if row.is_equal:
        assert row.variety > 2, "weights that repeat a token prove nothing"


_NOT_IN_BUFFERS = {
    **dict.fromkeys(("t5", "bart", "marian", "m2m_100", "mbart", "whisper"), "has an encoder"),
    **dict.fromkeys(("vision_encoder_decoder", "pix2struct"), "has an encoder"),
    "git": "data-dependent",
    "blip": "does not return logits and a cache|does not run on text alone",
}
_STATES = (
    "mamba mamba2 falcon_mamba jamba bamba zamba2 falcon_h1 granitemoehybrid qwen3_next lfm2 recurrent_gemma"
)


@pytest.mark.exhaustive
@pytest.mark.parametrize("family", [pytest.param(family, id=family.name) for family in FAMILIES])
def test_a_family_generates_with_its_cache_in_buffers(family: Family, tmp_path: Path) -> None:
    reasons = {
        **_NOT_IN_BUFFERS,
        **dict.fromkeys(_STATES.split(), "in buffers because the cache has a .*, not only keys and values"),
    }
    options = {"max_cache_len": 64, "cache_form": "buffers"}
    if (reason := reasons.get(family.name)) is not None:
        with pytest.raises(Exception, match=reason):
            agreement(family, tmp_path, **options)
        return

    found = agreement(family, tmp_path, **options)

    assert found.is_equal
    assert found.variety > 2


@pytest.mark.exhaustive
@pytest.mark.parametrize(
    "name", ["t5", "bart", "whisper", "mistral", "gpt_oss", "gemma3_image", "qwen2_audio", "lfm2", "zamba2"]
)
def test_a_family_generates_with_a_static_cache(name: str, tmp_path: Path) -> None:
    """What an encoder computed does not count as tokens of the decoder, and a window keeps every token."""
    found = agreement(next(family for family in FAMILIES if family.name == name), tmp_path, max_cache_len=64)

    assert found.is_equal
    assert found.variety > 2


def test_the_page_has_every_family() -> None:
    text = PAGE.read_text(encoding="utf-8")

    assert list(rows_on(text)) == [family.name for family in FAMILIES]
    equal = sum(verdict == "equal" for verdict in rows_on(text).values())
    assert re.search(rf"\b{equal} of {len(FAMILIES)} families\b", text)
    assert equal >= 20
