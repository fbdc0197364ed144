"""What the ranks of a model type return together, next to eager mode of the whole model."""

from __future__ import annotations

import functools
import json
import warnings
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from torch import nn
from torch.utils import _pytree as pytree

import fakexport as fe
from fakexport.error import FakexportError, first_line
from fakexport.models.sources import resolve
from tests.architectures import ARCHITECTURES, Architecture
from tests.lockstep import run_ranks

from .reference import eager, real_model, why
from .sizes import as_shapes
from .values import real_inputs

__all__ = ["DEGREES", "Outcome", "outcomes_of", "planned_types"]

DEGREES = ("tp=2", "tp=2,ep=2")
_CLOSE = 1e-5


@dataclass(frozen=True)
class Outcome:
    """What became of a type at one degree.

    Args:
        difference: The largest one from eager mode, relative to the largest number of the output; None
            where there is nothing to compare.
        reason: Why there is not; one line.
    """

    difference: float | None = None
    reason: str = ""

    @property
    def is_equal(self) -> bool:
        return self.difference is not None and self.difference < _CLOSE


@functools.cache
def planned_types() -> tuple[str, ...]:
    """The model types whose config, or a config inside of it, has a tensor parallel plan."""
    from transformers import CONFIG_MAPPING

    return tuple(name for name, config in CONFIG_MAPPING.items() if _has_plan(config))


def _has_plan(config: Any) -> bool:
    inner = (sub for sub in getattr(config, "sub_configs", {}).values() if sub is not config)
    return bool(getattr(config, "base_model_tp_plan", None)) or any(map(_has_plan, inner))


def outcomes_of(model_type: str, folder: Path) -> dict[str, Outcome]:
    """What a small model of the type returns at each of the degrees that it has a plan for."""
    known = {each.model_type: each for each in ARCHITECTURES}
    architecture = known.get(model_type, Architecture(model_type, "", is_common=False))
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        try:
            spec = architecture.source(folder).removesuffix(":")
            model, inputs = _called(spec)
            expected = eager(model, inputs)
            model.save_pretrained(folder / "checkpoint")
        except Exception as error:  # Whatever a config of a type may be refused for, and by whom.
            return {DEGREES[0]: Outcome(reason=f"not tried: {_text(error, folder)}")}
        degrees = DEGREES if getattr(model, "ep_plan", None) else DEGREES[:1]
        return {degree: _outcome(spec, degree, inputs, expected, folder) for degree in degrees}


def _called(spec: str) -> tuple[nn.Module, dict[str, torch.Tensor]]:
    """The model with real weights, and inputs with values."""
    source = resolve(spec)
    model = real_model(source, "float32").eval()
    given = source.example_inputs(model, "cpu", None)
    template = {name: value for name, value in given.kwargs.items() if isinstance(value, torch.Tensor)}
    if given.args or len(template) != len(given.kwargs):
        raise ValueError("inputs that are not tensors by name")
    return model, real_inputs(template, as_shapes(template), model.config, seed=1, is_padded=False)


def _outcome(
    spec: str,
    degree: str,
    inputs: Mapping[str, torch.Tensor],
    expected: list[torch.Tensor],
    folder: Path,
) -> Outcome:
    try:
        report = fe.check(spec, target="cpu", dtype="float32", parallel=degree, rank="all")
        programs = report.verdicts[0].rank_programs
        if not programs:
            whole = fe.check(spec, target="cpu", dtype="float32")
            if whole.verdicts[0].program is None:
                return Outcome(reason=f"not tried: not exported for one device: {_line(why(whole), folder)}")
            return Outcome(reason=_line(why(report), folder))
        bound = [fe.bind(programs[rank], folder / "checkpoint") for rank in sorted(programs)]
        found = run_ranks(bound, *inputs.values())
    except Exception as error:  # One that is not of fakexport is one to repair, and named.
        said = _text(error, folder)
        return Outcome(
            reason=said if isinstance(error, FakexportError) else f"{type(error).__name__}: {said}"
        )
    return max((_difference(leaves, expected) for leaves in found), key=_sorted)


def _sorted(outcome: Outcome) -> float:
    return float("inf") if outcome.difference is None else outcome.difference


def _difference(outputs: tuple[Any, ...], expected: list[torch.Tensor]) -> Outcome:
    found = [leaf for leaf in pytree.tree_leaves(outputs) if isinstance(leaf, torch.Tensor)]
    if [leaf.shape for leaf in found] != [leaf.shape for leaf in expected]:
        return Outcome(reason="outputs of other shapes")
    worst = 0.0
    for leaf, other in zip(found, expected, strict=True):
        if not leaf.numel():
            continue
        both = leaf.double(), other.double()
        if not (both[1].isfinite().all() and both[1].any()):
            return Outcome(reason="not tried: eager mode returns nothing but zeros, or no finite numbers")
        worst = max(worst, float((both[0] - both[1]).abs().max() / both[1].abs().max()))
    return Outcome(worst)


def _text(error: Exception, folder: Path) -> str:
    return _line(first_line(error), folder)


def _line(text: str, folder: Path) -> str:
    return text.replace(f"{folder}/", "").replace("|", "\\|")


@contextmanager
def limited_memory(most_bytes: int) -> Iterator[None]:
    """An allocation beyond the limit raises, so that one type does not end the process."""
    import resource

    before = resource.getrlimit(resource.RLIMIT_AS)
    resource.setrlimit(resource.RLIMIT_AS, (most_bytes, before[1]))
    try:
        yield
    finally:
        resource.setrlimit(resource.RLIMIT_AS, before)


def outcomes_from(text: str) -> dict[str, Outcome]:
    """The outcomes of a file that `json.dumps` wrote of them as fields."""
    found: dict[str, Any] = json.loads(text)
    if "error" in found:
        return {DEGREES[0]: Outcome(reason=f"not tried: {found['error']}")}
    return {degree: Outcome(**fields) for degree, fields in found.items()}
