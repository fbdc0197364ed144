"""Proof, for one model, that tracing equal blocks once changed nothing."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

from fakexport.error import FakexportError, InvalidValue
from fakexport.fake import Built, install_transfers
from fakexport.program import facts_of, first_difference
from fakexport.sources import ExampleInputs, Source

from .assumed_answers import AssumedAnswer
from .capture import Captured, capture


class ReuseMismatch(FakexportError, RuntimeError):
    """Tracing equal blocks once gave another result than tracing every block: a fault of fakexport."""


def refuse_strict(*, verify_reuse: bool, strict: bool) -> None:
    """Raise `InvalidValue` if a proof is asked for where there is nothing to prove."""
    if verify_reuse and strict:
        raise InvalidValue("block reuse cannot be verified in strict mode, which traces every block")


def verify_reuse(
    captured: Captured,
    source: Source,
    made: Callable[[], tuple[Built, ExampleInputs]],
    *,
    dynamic: Any,
    assumed: Sequence[AssumedAnswer] = (),
) -> None:
    """Raise unless a capture is what it is with every block traced.

    Args:
        captured: With block reuse.
        source: The source of the model.
        made: Constructs the model again, with its inputs: a first call may change a model.
        dynamic, assumed: As for `capture`.
    Raises:
        ReuseMismatch: The message names the first difference.
    """
    built, inputs = made()
    known = None if captured.program is None else facts_of(captured.program)
    with install_transfers(built.module, built.placement):
        traced = capture(
            built.module,
            inputs.args,
            inputs.kwargs,
            dynamic=dynamic,
            tracing=source.tracing(built.module, inputs),
            facts=known,
            reuse=False,
            assumed=assumed,
        )
    check_same(captured, traced)


def check_same(reused: Captured, traced: Captured) -> None:
    """Raise unless a capture with reuse is what the capture without it is.

    Raises:
        ReuseMismatch: The message names the first difference.
    """
    if reused.program is None or traced.program is None:
        if str(reused.failure) != str(traced.failure):
            raise ReuseMismatch("with block reuse the capture fails in another way")
        return
    difference = first_difference(reused.program, traced.program)
    told = [(c.read_constants, c.recovered) for c in (reused, traced)]
    if difference is None and told[0] != told[1]:
        difference = f"what was noted: {told[0]} and {told[1]}"
    # What is done once per process is done in the first capture only.
    if difference is None and (missed := [each for each in traced.effects if each not in reused.effects]):
        difference = f"effects: {missed} of forward are missing"
    if difference is not None:
        raise ReuseMismatch(f"with and without block reuse the program differs in the {difference}")
