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

# Torch supports them, and the program does otherwise than eager code or changes its caller's tensors.
TOLD = {"model_attr_mutation": ["FE903"], "user_input_mutation": ["FE902"]}

# Torch warns of what these examples show.
pytestmark = pytest.mark.filterwarnings("ignore::UserWarning")


def checked(example):
    dynamic = [
        f"{name}.{dim}={declared.min}..{min(declared.max, 1024)}"
        for name, dims in (example.dynamic_shapes or {}).items()
        for dim, declared in (dims or {}).items()
    ]
    model = lambda: (example.model, example.example_args, example.example_kwargs)  # noqa: E731
    return fe.check(model, dynamic_shapes=dynamic)


def test_exportdb_has_supported_and_unsupported_examples():
    assert len(SUPPORTED) >= 30
    assert UNSUPPORTED


@pytest.mark.parametrize("example", UNSUPPORTED)
def test_unsupported_example_is_reported_by_a_rule_with_its_tag(example):
    report = checked(example)

    assert not report.is_clean
    for diagnostic in report.diagnostics:
        assert diagnostic.code != "FE202"
        assert set(rule(diagnostic.code).exportdb) & example.tags
        assert diagnostic.primary is None  # The example's own line belongs to torch, which is never at fault.


@pytest.mark.parametrize("example", SUPPORTED)
def test_supported_example_has_no_error(example, request):
    report = checked(example)

    assert [diagnostic.code for diagnostic in report.diagnostics] == TOLD.get(request.node.callspec.id, [])
    assert report.is_clean


def test_exportdb_tags_of_rules_exist():
    known = {f"{family}.{name}" for family, names in _TAGS.items() for name in names}

    assert {tag for each in all_rules() for tag in each.exportdb} <= known
