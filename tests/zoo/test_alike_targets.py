"""Architectures on several devices: the program of a trace that serves another target is that of its own."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from fakexport.checking import check
from fakexport.program import facts_of
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
def test_a_shared_trace_gives_the_program_of_its_own(
    architecture: Architecture, tmp_path: Path, record_property: pytest.RecordProperty
) -> None:
    if not architecture.is_available:
        pytest.skip(f"this transformers has no {architecture}")
    path = tmp_path / f"{architecture.model_type}.json"
    path.write_text(json.dumps(dict(architecture.settings)))
    source = f"hf:{path}:{architecture.auto_class}"
    together = check(source, target=TARGETS, dtype="bfloat16").verdicts
    shared = [verdict for verdict in together if verdict.program and not verdict.timings.capture_s]
    record_property("shared", [verdict.target.name for verdict in shared])
    if str(architecture) in IN_CI:
        assert shared
    for verdict in shared:
        (alone,) = check(source, target=verdict.target.name, dtype="bfloat16").verdicts
        assert alone.program is not None
        assert verdict.program is not None
        assert first_difference(verdict.program, alone.program) is None
        assert facts_of(verdict.program) == facts_of(alone.program)
        assert (verdict.notes, verdict.memory_left) == (alone.notes, alone.memory_left)
