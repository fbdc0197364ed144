"""Architectures on several devices: the answer for each target is the one for that target alone."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from fakexport.checking import check
from tests.architectures import ARCHITECTURES, Architecture

pytest.importorskip("transformers")
pytestmark = [pytest.mark.zoo, pytest.mark.filterwarnings("ignore")]

IN_CI = ("llama", "vit", "deepseek_v3")
TARGETS = ("H100", "A100", "T4")


def marks(name: str) -> tuple[pytest.MarkDecorator, ...]:
    return (pytest.mark.slow,) if name in IN_CI else (pytest.mark.exhaustive,)


@pytest.mark.parametrize(
    "architecture", [pytest.param(each, id=str(each), marks=marks(str(each))) for each in ARCHITECTURES]
)
def test_the_answer_for_a_target_does_not_depend_on_other_targets(
    architecture: Architecture, tmp_path: Path
) -> None:
    if not architecture.is_available:
        pytest.skip(f"this transformers has no {architecture}")
    path = tmp_path / f"{architecture.model_type}.json"
    path.write_text(json.dumps(dict(architecture.settings)))
    source = f"hf:{path}:{architecture.auto_class}"

    together = check(source, target=TARGETS, dtype="bfloat16").verdicts

    for verdict in together:
        (alone,) = check(source, target=verdict.target.name, dtype="bfloat16").verdicts
        assert alone.saved == verdict.saved  # The bytes of the archives.
        assert (verdict.notes, verdict.memory_left) == (alone.notes, alone.memory_left)
