"""Torch's own collection of examples is the oracle: the unsupported are diagnosed, the rest is clean."""

from __future__ import annotations

import pytest
from torch._export.db.case import _TAGS, SupportLevel
from torch._export.db.examples import all_examples

import fakexport as fe
from fakexport.rules import all_rules, rule

EXAMPLES = [pytest.param(example, id=name) for name, example in sorted(all_examples().items())]
UNSUPPORTED = [p for p in EXAMPLES if p.values[0].support_level is SupportLevel.NOT_SUPPORTED_YET]
SUPPORTED = [p for p in EXAMPLES if p.values[0].support_level is SupportLevel.SUPPORTED]

# Torch warns of what these examples show.
pytestmark = pytest.mark.filterwarnings("ignore::UserWarning")


def checked(example):
    dynamic = [
        f"{name}.{dim}={declared.min}..{min(declared.max, 1024)}"
        for name, dims in (example.dynamic_shapes or {}).items()
        for dim, declared in (dims or {}).items()
    ]
    model = lambda: (example.model, example.example_args, example.example_kwargs)  # noqa: E731
    report = fe.check(model, dynamic_shapes=dynamic)
    return report, [diagnostic for diagnostic in report.diagnostics if diagnostic.severity == "error"]


def test_the_collection_has_examples_of_both_kinds():
    assert len(SUPPORTED) >= 30
    assert UNSUPPORTED


@pytest.mark.parametrize("example", UNSUPPORTED)
def test_an_unsupported_example_gives_a_rule_of_its_subject(example):
    report, errors = checked(example)

    assert not report.is_clean
    for diagnostic in errors:
        assert diagnostic.code != "FE202"
        assert set(rule(diagnostic.code).exportdb) & example.tags
        assert diagnostic.primary is None  # The example's own line belongs to torch, which is never at fault.


@pytest.mark.parametrize("example", SUPPORTED)
def test_a_supported_example_gives_no_error(example):
    report, errors = checked(example)

    assert errors == []
    assert report.is_clean


def test_every_tag_of_a_rule_is_one_of_the_collection():
    known = {f"{family}.{name}" for family, names in _TAGS.items() for name in names}

    assert {tag for each in all_rules() for tag in each.exportdb} <= known
