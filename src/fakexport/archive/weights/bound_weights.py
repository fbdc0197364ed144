"""Read the weights of a program from a checkpoint, as real tensors."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field

import torch

from fakexport._torch.operators.real_execution import real_execution
from fakexport.archive.weights.checkpoint import Checkpoint
from fakexport.archive.weights.expectation import ExpectedWeights, Weight
from fakexport.archive.weights.likely_cause import Cause
from fakexport.archive.weights.matching import Match
from fakexport.archive.weights.weights_report import WeightFinding
from fakexport.emulation.fake import is_fake


@dataclass
class BoundWeights:
    """Real tensors by name, and findings about their data. Tied names share one tensor."""

    tensors: dict[str, torch.Tensor] = field(default_factory=dict)
    findings: list[WeightFinding] = field(default_factory=list)


def read_weights(
    checkpoint: Checkpoint,
    match: Match,
    expected: ExpectedWeights,
    like: Mapping[str, torch.Tensor],
    *,
    is_checking_finite: bool,
) -> BoundWeights:
    """Return every expected weight as a CPU tensor with the program's dtype and strides.

    A memory-mapped tensor that already has both is not copied. Weights that transformers merges are copied.
    """
    bound = BoundWeights()
    with real_execution():
        made = _made(checkpoint, match, expected)
        bound.findings.extend(_without_data(made))
        if bound.findings:
            return bound
        if is_checking_finite:
            bound.findings.extend(_not_finite(made))
        computed = {name: (value, expected.all[name]) for name, value in match.computed.items()}
        for name, (tensor, weight) in (made | computed).items():
            bound.tensors[name] = _fitted(tensor, weight, like[name])
        bound.findings.extend(_differing_ties(bound.tensors, expected))
    for names in expected.tied:
        one = next(bound.tensors[name] for name in names if name in bound.tensors)
        bound.tensors.update(dict.fromkeys(names, one))
    return bound


Made = dict[str, tuple[torch.Tensor, Weight]]


def _made(checkpoint: Checkpoint, match: Match, expected: ExpectedWeights) -> Made:
    made: Made = {}
    for conversion in dict.fromkeys(match.conversions.values()):
        for name, tensor in conversion.convert(checkpoint.tensor).items():
            if name in expected.all and match.conversions.get(name) is conversion:
                made[name] = tensor.detach(), expected.all[name]
    return made


def _without_data(made: Made) -> list[WeightFinding]:
    names = tuple(name for name, (tensor, _) in made.items() if is_fake(tensor) or tensor.is_meta)
    return (
        [WeightFinding("FE701", names, cause=Cause("the entries are fake tensors, without data"))]
        if names
        else []
    )


def _not_finite(made: Made) -> list[WeightFinding]:
    names = tuple(name for name, (tensor, _) in made.items() if not is_finite(tensor))
    return [WeightFinding("FE706", names)] if names else []


def _fitted(tensor: torch.Tensor, weight: Weight, like: torch.Tensor) -> torch.Tensor:
    """Convert a tensor to the program's dtype and strides. A tensor that has both is not copied."""
    converted = tensor.to(weight.dtype)
    if like.layout is not torch.strided or _is_laid_out(converted, like.stride()):
        return converted
    fitted = torch.empty_strided(like.shape, like.stride(), dtype=weight.dtype)
    return fitted.copy_(converted)


def _is_laid_out(tensor: torch.Tensor, strides: tuple[int, ...]) -> bool:
    sized = zip(tensor.shape, tensor.stride(), strides, strict=True)
    return tensor.numel() == 0 or all(size == 1 or own == other for size, own, other in sized)


def _differing_ties(tensors: Mapping[str, torch.Tensor], expected: ExpectedWeights) -> list[WeightFinding]:
    """Return a finding for each tied weight whose checkpoint entries have different data."""
    findings = []
    for names in expected.tied:
        present = [name for name in names if name in tensors]
        if not all(are_equal(tensors[present[0]], tensors[name]) for name in present[1:]):
            cause = Cause("their data differs: the weights of the checkpoint are not tied")
            findings.append(WeightFinding("FE705", tuple(present), cause=cause, severity="error"))
    return findings


_PIECE = 1 << 24


def is_finite(tensor: torch.Tensor) -> bool:
    """Return whether every element is finite. Reads the data once, in pieces, to use little memory."""
    if not (tensor.is_floating_point() or tensor.is_complex()):
        return True
    flat = tensor.detach().reshape(-1)
    if flat.itemsize == 1:  # float8 has no `isfinite` kernel
        return all(bool(piece.to(torch.float32).isfinite().all()) for piece in flat.split(_PIECE))
    return all(bool(piece.isfinite().all()) for piece in flat.split(_PIECE))


def are_equal(first: torch.Tensor, second: torch.Tensor) -> bool:
    """Return whether two tensors have the same shape, dtype and bits."""
    if first.shape != second.shape or first.dtype != second.dtype:
        return False
    if first.data_ptr() == second.data_ptr() and first.stride() == second.stride():
        return True
    if 0 in first.stride() and first.stride() == second.stride():
        # Index 0 of an expanded dimension stands for all of its elements.
        once = [0 if stride == 0 else slice(None) for stride in first.stride()]
        first, second = first[tuple(once)], second[tuple(once)]
    pairs = zip(_pieces(first), _pieces(second), strict=True)
    return all(torch.equal(a, b) for a, b in pairs)


def _pieces(tensor: torch.Tensor) -> tuple[torch.Tensor, ...]:
    flat = tensor.detach().contiguous().reshape(-1)
    return flat.view(torch.uint8).split(_PIECE) if flat.numel() else ()
