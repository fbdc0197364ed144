"""Ovis2 writes what its indicator tokens stand for, in a program as in eager mode."""

from __future__ import annotations

import inspect

import pytest
import torch

pytest.importorskip("transformers")

import fakexport as fe
from fakexport.sources import resolve
from fakexport.sources.masked_writes import _unconditional
from tests.architectures import Architecture

OVIS2 = Architecture("ovis2", "AutoModelForImageTextToText", is_common=False)
pytestmark = pytest.mark.skipif(not OVIS2.is_available, reason="this transformers has no ovis2")


@pytest.mark.parametrize("indicators", [(), (90, 92, 94), (90, 91, 92, 93, 94)])
def test_one_program_takes_any_of_the_indicator_tokens(indicators, tmp_path):
    source = resolve(OVIS2.source(tmp_path))
    torch.manual_seed(0)
    model = source.factory().eval()
    given = dict(source.example_inputs(model, "cpu", None).kwargs)
    program = fe.bind(fe.export(source), dict(model.state_dict())).module()

    ids = given["input_ids"].clone()
    ids[0, -len(indicators) or ids.shape[1] :] = torch.tensor(indicators, dtype=torch.long)
    with torch.no_grad():
        expected = model(**{**given, "input_ids": ids}).logits
        plain = model(**given).logits
    found = program(**{**given, "input_ids": ids})["logits"]

    torch.testing.assert_close(found, expected, rtol=1e-4, atol=1e-5)
    assert torch.allclose(expected, plain) == (not indicators)


def test_other_conditions_and_all_lines_stay():
    changed = _unconditional(with_conditions)

    assert changed(torch.zeros(2), torch.tensor([False, True])).tolist() == [0.0, 1.0]
    assert changed(torch.zeros(2), torch.tensor([False, False])).tolist() == [0.0, 0.0]
    lines = {line for *_, line in changed.__code__.co_lines() if line is not None}
    first = with_conditions.__code__.co_firstlineno
    assert lines == {first, *range(first + 2, first + 6)}
    assert inspect.signature(changed) == inspect.signature(with_conditions)


def with_conditions(x, mask, *, other=2.0):
    if mask.any():
        x[mask] = 1
    if x.any() and not mask.any():
        x[mask] = other
    return x
