"""Checks of inputs are turned off by name, in the program and in its archive."""

from __future__ import annotations

import pytest
import torch
from torch import nn

import fakexport as fe
from fakexport.exporting.program import facts_of


class ByLayout(nn.Module):
    def forward(self, x, y, n=1):
        return x * (2 if y.is_contiguous() else 3) * (5 if x is y else 7) * n


@pytest.fixture(scope="module")
def program():
    return fe.export(ByLayout, (torch.ones(2, 2), torch.ones(2, 2)), {"n": 1})


def test_checks_that_are_turned_off_are_off_in_the_archive_too(program, tmp_path):
    same = torch.ones(2, 2).t()
    with pytest.raises(AssertionError, match="id"):
        program.module()(same, same, n=1)

    loose = fe.without_checks(program, "identity", "strides")
    fe.save(loose, tmp_path / "loose.pt2")
    loaded = fe.load(tmp_path / "loose.pt2")

    for module in (loose.module(), loaded.module(), torch.export.load(tmp_path / "loose.pt2").module()):
        assert torch.equal(module(same, same, n=1), torch.full((2, 2), 14.0))
    assert torch.equal(fe.run(loaded, same, same, n=1)["output"], torch.full((2, 2), 14.0))
    assert facts_of(loaded).skipped_checks[-2:] == (
        "inputs are not checked for identity",
        "inputs are not checked for strides",
    )


def test_other_checks_stay(program):
    module = fe.without_checks(program, "identity").module()

    with pytest.raises(AssertionError, match="dtype"):
        module(torch.ones(2, 2), torch.ones(2, 2).double(), n=1)
    with pytest.raises(AssertionError, match="type"):
        module(torch.ones(2, 2), torch.ones(2, 2), n=True)


def test_an_unknown_name_is_refused(program):
    with pytest.raises(ValueError, match="unknown check 'layouts'; expected dtype"):
        fe.without_checks(program, "layouts")
