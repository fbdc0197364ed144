"""Compare what no checkpoint contains with the values that the model's code computes."""

from __future__ import annotations

import math
from collections.abc import Iterator
from dataclasses import replace

import torch
from torch import nn

from fakexport._torch.fake_tensors import is_fake_tensor
from fakexport._torch.real_execution import real_execution
from fakexport._torch.tracing_lock import one_at_a_time
from fakexport.capture import UnboundConstant
from fakexport.error import InvalidType
from fakexport.fake import Held
from fakexport.weights.buffer_values import BuiltAgain, Outcome, Reference, built_again, unsaved_tensors
from fakexport.weights.buffers_report import BuffersReport, UncheckedBuffer, WrongBuffer, difference_text
from fakexport.weights.creation_line import creation_span, written_at_run_time

# Relative: what kernels of different devices may differ in. A value that was rounded to a smaller dtype and
# stored in a larger one differs by more.
_TOLERANCE = {
    torch.float64: 1e-12,
    torch.complex128: 1e-12,
    torch.float32: 1e-5,
    torch.complex64: 1e-5,
    torch.float16: 2**-9,
    torch.bfloat16: 2**-7,
}
_PLAIN = (torch.Tensor, nn.Buffer)


@one_at_a_time
def verify_buffers(
    model: nn.Module, reference: Reference | None = None, *, repair: bool = False
) -> BuffersReport:
    """Report which non-persistent buffers and plain tensors of a loaded model have wrong values.

    Models that are built on the meta device and given memory with `to_empty` get their weights from a
    checkpoint; what the checkpoint does not contain is left as it was in memory: rotary frequencies, masks,
    scales. Their right values are computed from the model's code, which is run again without data, on the
    CPU. Weights and persistent buffers are not looked at.

    Args:
        model: A model with its weights. Changed only by `repair`.
        reference: What builds the same model: a source, as for `check`, a factory, or a model that is right.
            Default: a transformers model is built from its config; any other from the arguments of its
            constructor that it keeps as attributes of the same names.
        repair: Write the right values into the wrong tensors, on their devices and in their dtypes.
    Returns:
        What is right, what is wrong and how much, and what could not be checked: values that are drawn at
        random, computed from weights, or that `forward` changes.
    Raises:
        ValueError: the model cannot be built again; one line.
        TypeError: it is not a module.
    Reports:
        FE920.

    Example:
        >>> class Scaled(nn.Module):
        ...     def __init__(self):
        ...         super().__init__()
        ...         self.register_buffer("scale", torch.full((2,), 3.0), persistent=False)
        >>> model = Scaled()
        >>> _ = model.scale.fill_(7.0)
        >>> verify_buffers(model, repair=True).wrong[0].name, model.scale.tolist()
        ('scale', [3.0, 3.0])
    """
    if not isinstance(model, nn.Module):
        raise InvalidType(f"verify_buffers takes a module, not {type(model).__name__}")
    known = built_again(model, reference)
    report = BuffersReport(known.origin, (), (), ())
    with real_execution(), torch.no_grad():
        for held, found in _compared(model, known):
            if isinstance(found, UncheckedBuffer):
                report = replace(report, unchecked=(*report.unchecked, found))
            elif found is None:
                report = replace(report, right=(*report.right, held.path))
            else:
                report = replace(report, wrong=(*report.wrong, found[0]))
                if repair:
                    _put(held, found[1])
    return replace(report, is_repaired=repair)


Finding = UncheckedBuffer | tuple[WrongBuffer, torch.Tensor] | None


def _compared(model: nn.Module, known: BuiltAgain) -> Iterator[tuple[Held, Finding]]:
    """Yield each tensor with what is wrong with it and its right value; None: nothing is."""
    owners = dict(model.named_modules(remove_duplicate=False))
    for held in unsaved_tensors(model).values():
        path, _, name = held.path.partition("[")[0].rpartition(".")
        yield held, _finding(held, owners.get(path, model), name, known.outcomes(held.path))


def _finding(held: Held, owner: nn.Module, name: str, outcomes: list[Outcome]) -> Finding:
    kind = type(held.tensor)
    if kind not in _PLAIN or is_fake_tensor(held.tensor) or held.tensor.layout != torch.strided:
        return UncheckedBuffer(held.path, f"it is a {kind.__name__}, not a plain tensor with data")
    if not outcomes:
        return UncheckedBuffer(held.path, "the constructor does not create it")
    values = [outcome for outcome in outcomes if isinstance(outcome, torch.Tensor)]
    if not values:
        (reason,) = {outcome.detail for outcome in outcomes[:1] if isinstance(outcome, UnboundConstant)}
        return UncheckedBuffer(held.path, reason)
    if any(_is_close(held.tensor, value) for value in values):
        return None
    difference = _difference(held.tensor, values[-1])
    is_number = not math.isnan(difference)
    if is_number and not held.tensor.is_meta and written_at_run_time(owner, name):
        return UncheckedBuffer(held.path, "forward changes it")
    wrong = WrongBuffer(held.path, _fault(held.tensor, values[-1]), difference, creation_span(owner, name))
    return wrong, values[-1]


def _is_close(found: torch.Tensor, value: torch.Tensor) -> bool:
    if found.is_meta or found.shape != value.shape:
        return False
    here, expected = found.detach().cpu(), value.detach().cpu().to(found.dtype)
    if found.dtype not in _TOLERANCE:
        return here.float().equal(expected.float()) if found.is_floating_point() else here.equal(expected)
    tolerance = _TOLERANCE[found.dtype]
    finite = expected.abs()[torch.isfinite(expected)]
    largest = float(finite.max()) if finite.numel() else 0.0
    return torch.allclose(here, expected, rtol=tolerance, atol=tolerance * largest / 10, equal_nan=True)


def _difference(found: torch.Tensor, value: torch.Tensor) -> float:
    """Return the largest difference: NaN where one of the two is NaN and the other is not."""
    if found.is_meta or found.shape != value.shape:
        return float("inf")
    wide = torch.complex128 if found.is_complex() or value.is_complex() else torch.float64
    here, expected = found.detach().cpu().to(wide), value.detach().cpu().to(wide)
    same = (here == expected) | (here.isnan() & expected.isnan())
    apart = (here - expected).abs()[~same]
    return float(apart.max()) if apart.numel() else 0.0


def _fault(found: torch.Tensor, value: torch.Tensor) -> str:
    if found.is_meta:
        return "it is on the meta device and has no data"
    if found.shape != value.shape:
        return f"its shape is {list(found.shape)}, expected {list(value.shape)}"
    return difference_text(_difference(found, value))


def _put(held: Held, value: torch.Tensor) -> None:
    """Write the right value: into the tensor that is there, which may have other names, if it has a place."""
    found = held.tensor
    if found.is_meta or found.shape != value.shape:
        device = torch.device("cpu") if found.is_meta else found.device
        held.put(value.to(device=device, dtype=found.dtype, copy=True))
    else:
        found.copy_(value)
