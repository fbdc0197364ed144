"""From `--dynamic` to what torch.export takes."""

from __future__ import annotations

import pytest
import torch
from torch import nn

import fakexport as fe
from fakexport.models import DynamicDim, parse_dynamic


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("ids.0", DynamicDim("ids", 0)),
        ("ids.1=2..4096", DynamicDim("ids", 1, 2, 4096)),
        ("ids.1=2..", DynamicDim("ids", 1, 2, None)),
        ("pixel_values.3=..64", DynamicDim("pixel_values", 3, None, 64)),
        ("ids.1=seq", DynamicDim("ids", 1, symbol="seq")),
        ("ids.1=seq=2..4096", DynamicDim("ids", 1, 2, 4096, "seq")),
    ],
)
def test_a_dimension_is_read(text, expected):
    assert parse_dynamic([text]).dims == (expected,)


def test_auto_stands_beside_named_dimensions():
    dynamic = parse_dynamic(["auto", "ids.0=1..4"])

    assert dynamic.is_auto
    assert dynamic.dims == (DynamicDim("ids", 0, 1, 4),)


@pytest.mark.parametrize(
    ("text", "fragment"),
    [
        ("ids", "NAME.DIM=MIN..MAX"),
        ("ids.0=", "invalid dynamic dimension"),
        ("ids.0=1|", "invalid dynamic dimension"),
        ("ids.0=1|4..8", "ids.0: sizes 2 to 3 are in neither of the ranges 1 and 4..8"),
        ("ids.0=1..4|6..8", "ids.0: size 5 is in neither of the ranges 1..4 and 6..8"),
        ("ids.0=1..4|4..8", "ids.0: 1..4 and 4..8 overlap"),
        ("ids.0=5..|1", "5.. and 1 overlap or are not in ascending order"),
        ("ids.0=..4|5", "each of several ranges needs its smallest size"),
        ("ids.0=8..2", "empty range"),
        ("ids.x=1..2", "invalid dynamic dimension"),
        ("ids.0=auto", "invalid dynamic dimension"),
        ("ids.0=2..4=seq", "invalid dynamic dimension"),
    ],
)
def test_another_form_is_refused_in_one_line(text, fragment):
    with pytest.raises(ValueError, match=fragment) as caught:
        parse_dynamic([text])

    assert "\n" not in str(caught.value)


def test_a_dimension_named_twice_is_refused():
    with pytest.raises(ValueError, match=r"ids\.0 is declared dynamic twice"):
        parse_dynamic(["ids.0", "ids.0=1..4"])


def test_dimensions_with_one_name_have_one_range():
    dims = parse_dynamic(["ids.1=seq", "mask.1=seq=2..64", "ids.0=batch"]).dims

    assert [(dim.min, dim.max) for dim in dims] == [(2, 64), (2, 64), (None, None)]
    with pytest.raises(ValueError, match="named seq have different ranges"):
        parse_dynamic(["ids.1=seq=2..8", "mask.1=seq=2..64"])


class Twice(nn.Module):
    def forward(self, ids, mask):
        return ids * 2, mask * 2


def test_a_program_checks_that_dimensions_with_one_name_are_equal():
    inputs = torch.ones(4, 3), torch.ones(4, 3)
    program = fe.export(lambda: (Twice(), inputs), dynamic_shapes=["ids.0=n=2..8", "mask.0=n"])

    assert program.module()(torch.ones(5, 3), torch.ones(5, 3))[0].shape == (5, 3)
    with pytest.raises(Exception, match=r"mask\.size\(\)\[0\] == ids\.size\(\)\[0\]"):
        program.module()(torch.ones(5, 3), torch.ones(6, 3))
    with pytest.raises(ValueError, match=r"the example size of ids\.0 is 4, but that of mask\.0 is 5"):
        fe.export(
            lambda: (Twice(), (torch.ones(4, 3), torch.ones(5, 3))), dynamic_shapes=["ids.0=n", "mask.0=n"]
        )


class Rows(nn.Module):
    def forward(self, ids, mask):
        return ids * mask


@pytest.mark.parametrize(
    ("text", "fragment"),
    [
        ("idz.0", r"no such input; it has ids"),
        ("ids.2", "has 2 dimensions"),
        ("ids.0=8..64", r"size 4 is not in 8\.\.64"),
    ],
)
def test_a_dimension_that_the_inputs_do_not_have_is_refused(text, fragment):
    inputs = (torch.ones(4, 3), torch.ones(4, 3))

    with pytest.raises(ValueError, match=fragment):
        fe.export(Rows(), inputs, dynamic_shapes=[text])


def test_a_named_range_is_the_programs_range():
    program = fe.export(Rows(), (torch.ones(4, 3), torch.ones(4, 3)), dynamic_shapes=["ids.0=2..64"])

    (bounds,) = program.range_constraints.values()
    assert (bounds.lower, bounds.upper) == (2, 64)


def test_a_dimension_of_the_same_size_follows_the_named_one():
    program = fe.export(Rows(), (torch.ones(4, 3), torch.ones(4, 3)), dynamic_shapes=["ids.0=2..64"])

    ids, mask = (node for node in program.graph.nodes if node.op == "placeholder")
    assert ids.meta["val"].shape[0] == mask.meta["val"].shape[0]
    assert isinstance(mask.meta["val"].shape[0], torch.SymInt)
    assert mask.meta["val"].shape[1] == 3


def test_auto_leaves_to_the_model_what_varies():
    program = fe.export(Rows(), (torch.ones(4, 3), torch.ones(4, 3)), dynamic_shapes="auto")

    assert len(program.range_constraints) == 2


class Placeholders(nn.Module):
    """Puts a feature instead of each placeholder, and checks that there are as many."""

    def forward(self, ids, features):
        mask = (ids == 9).unsqueeze(-1).expand(*ids.shape, 1024)
        embeds = torch.zeros(*ids.shape, 1024)
        torch._check(embeds[mask].numel() == features.numel())
        return embeds.masked_scatter(mask, features)


def test_a_count_that_depends_on_data_may_equal_a_multiple_of_a_size():
    def inputs_of(count):
        ids = torch.zeros(2, 8, dtype=torch.long)
        ids.view(-1)[:count] = 9
        return ids, torch.randn(count, 1024)

    program = fe.export(Placeholders(), inputs_of(6), dynamic_shapes="auto")

    inputs = inputs_of(4)
    assert torch.equal(program.module()(*inputs), Placeholders()(*inputs))
