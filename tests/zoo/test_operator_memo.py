"""Architectures with more layers than kinds of them: the same program with the memo of operators."""

from __future__ import annotations

import json
import re
from collections.abc import Iterator
from functools import partial
from pathlib import Path

import pytest
import torch

from fakexport._torch.speed.operator_memo import OperatorMemo
from fakexport.emulation.devices import emulate
from fakexport.emulation.fake import build, install_transfers
from fakexport.exporting.capture import Captured, capture
from fakexport.models import DynamicDims, parse_dynamic
from fakexport.models.sources import Source, SourceError, exported_workload, resolve
from tests.architectures import ARCHITECTURES, Architecture
from tests.architectures.deepened import deepened
from tests.identity import first_difference

pytest.importorskip("transformers")
pytestmark = [pytest.mark.zoo, pytest.mark.filterwarnings("ignore")]

# What people deploy. Some operators of these must be answered from memory, in both ways.
IN_CI = ("vit", "llama")
DEPTH = 6  # Some types repeat their kinds of layers after four.
DEPTH_IN_CI = 3


GENERATING = tuple(
    f"AutoModelFor{kind}" for kind in ("CausalLM", "Seq2SeqLM", "SpeechSeq2Seq", "ImageTextToText")
)
# A cache that grows.
CACHED_IN_CI = ("llama",)
# A decoder that makes its own mask, unless it is traced.
STATIC_IN_CI = ("bart",)
# Why a type does not generate with a cache; any other refusal is a fault.
REFUSALS = "as a Python number|does not generate|does not run on text alone|a Python loop|cannot be an input"


def cache_marks(
    architecture: Architecture, workload: str, capacity: int | None
) -> tuple[pytest.MarkDecorator, ...]:
    names = CACHED_IN_CI if capacity is None else STATIC_IN_CI
    is_common = str(architecture) in names and workload == "decode"
    return (pytest.mark.slow,) if is_common else (pytest.mark.exhaustive,)


def marks(name: str) -> tuple[pytest.MarkDecorator, ...]:
    return (pytest.mark.slow,) if name in IN_CI else (pytest.mark.exhaustive,)


@pytest.fixture
def memos(monkeypatch: pytest.MonkeyPatch) -> list[OperatorMemo]:
    """The memo of each trace."""
    seen: list[OperatorMemo] = []
    active = OperatorMemo.active

    def watched(memo: OperatorMemo) -> object:
        seen.append(memo)
        return active(memo)

    monkeypatch.setattr(OperatorMemo, "active", watched)
    return seen


def source_of(architecture: Architecture, folder: Path) -> str:
    """The deep model; or the small one, where the config cannot be deepened."""
    depth = DEPTH_IN_CI if str(architecture) in (*IN_CI, *CACHED_IN_CI, *STATIC_IN_CI) else DEPTH
    for settings in (deepened(architecture.settings, depth), dict(architecture.settings)):
        path = folder / f"{architecture.model_type}.json"
        path.write_text(json.dumps(settings))
        source = f"hf:{path}:{architecture.auto_class}"
        try:
            with emulate("cpu"):
                build(resolve(source).factory)
        except Exception:  # whatever a constructor raises for layers that do not fit each other
            continue
        return source
    raise AssertionError(f"{architecture} cannot be constructed")


def modes() -> Iterator[tuple[str, DynamicDims | None, torch.dtype | None]]:
    yield "cpu", None, None
    yield "H100", parse_dynamic("auto"), torch.bfloat16
    # The first call on one device is answered by that on another one.
    yield "4xH100", parse_dynamic("auto"), torch.bfloat16


def captured(
    source: Source, target: str, dynamic: DynamicDims | None, dtype: torch.dtype | None, switch: str
) -> Captured:
    with pytest.MonkeyPatch.context() as patch, emulate(target) as devices:
        patch.setenv("FAKEXPORT_SPEED", switch)
        is_alone = len(devices.accelerators) < 2
        built = build(
            source.factory, device_map=devices.default_device if is_alone else "balanced", dtype=dtype
        )
        with built.mode:
            inputs = source.example_inputs(built.module, devices.default_device, dtype)
        with install_transfers(built.module, built.placement):
            tracing = partial(source.tracing, built.module, inputs)
            return capture(built.module, inputs.args, inputs.kwargs, dynamic=dynamic, tracing=tracing)


def verify(source: Source, target: str, dynamic: DynamicDims | None, dtype: torch.dtype | None) -> None:
    """Compare the program with that of stock torch; if there is none, the failures."""
    quick, stock = (captured(source, target, dynamic, dtype, switch) for switch in ("1", "0"))
    if quick.program is None or stock.program is None:
        assert str(quick.failure) == str(stock.failure)
        return
    assert first_difference(quick.program, stock.program) is None
    assert (quick.read_constants, quick.recovered) == (stock.read_constants, stock.recovered)


@pytest.mark.parametrize(
    "architecture", [pytest.param(each, id=str(each), marks=marks(str(each))) for each in ARCHITECTURES]
)
def test_the_program_is_that_of_stock_torch(
    architecture: Architecture, memos: list[OperatorMemo], tmp_path: Path
) -> None:
    if not architecture.is_available:
        pytest.skip(f"this transformers has no {architecture}")
    source = resolve(source_of(architecture, tmp_path))
    for target, dynamic, dtype in modes():
        verify(source, target, dynamic, dtype)
    if str(architecture) in IN_CI:
        assert all(memo.answered for memo in memos)


def with_caches() -> Iterator[tuple[Architecture, str, int | None]]:
    """Types that may generate, the calls of generation, and how many tokens a static cache holds."""
    for architecture in ARCHITECTURES:
        if architecture.auto_class in GENERATING:
            for workload in ("prefill", "decode"):
                yield architecture, workload, None
                yield architecture, workload, 64


@pytest.mark.parametrize(
    ("architecture", "workload", "capacity"),
    [
        pytest.param(*case, id=f"{case[0]}-{case[1]}-{case[2] or 'grows'}", marks=cache_marks(*case))
        for case in with_caches()
    ],
)
def test_the_program_with_a_cache_is_that_of_stock_torch(
    architecture: Architecture,
    workload: str,
    capacity: int | None,
    memos: list[OperatorMemo],
    tmp_path: Path,
) -> None:
    if not architecture.is_available:
        pytest.skip(f"this transformers has no {architecture}")
    spec = source_of(architecture, tmp_path)
    for target, named, dtype in (("cpu", None, None), ("H100", "auto", torch.bfloat16)):
        call, dynamic = exported_workload(workload, named, capacity)
        try:
            verify(resolve(spec, workload=call), target, parse_dynamic(dynamic), dtype)
        except SourceError as reason:
            if str(architecture) in (*CACHED_IN_CI, *STATIC_IN_CI) or not re.search(REFUSALS, str(reason)):
                raise
            pytest.skip(f"it does not generate with this cache: {reason}")
    if str(architecture) in CACHED_IN_CI and workload == "decode":
        assert all(memo.answered for memo in memos)
