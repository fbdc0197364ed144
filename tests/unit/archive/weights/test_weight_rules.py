"""Each rule of weights: its failing model and checkpoint give exactly it, the repaired ones give nothing."""

from __future__ import annotations

import warnings

import pytest
import torch

import fakexport as fe
from fakexport.archive.weights import BindError, WeightsWarning
from fakexport.rules import all_rules

RULES = [pytest.param(rule, id=rule.code) for rule in all_rules() if rule.fails_on == "weights"]
TOLD_BY_HEADERS = [p for p in RULES if p.values[0].code != "FE706"]


def run(source, path):
    """The `factory` and `checkpoint` of a model file."""
    path.write_text(source)
    namespace = {"__name__": path.stem}
    exec(compile(source, str(path), "exec"), namespace)
    torch.manual_seed(0)
    return namespace["factory"], namespace["checkpoint"]()


def codes_of_binding(factory, checkpoint, *, is_hub=False):
    program = fe.export(factory)
    source = factory if is_hub else None
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always", WeightsWarning)
        try:
            fe.bind(program, checkpoint, source=source)
        except BindError as error:
            return [finding.code for finding in error.report.findings]
    return [str(w.message).partition(":")[0] for w in caught if issubclass(w.category, WeightsWarning)]


@pytest.mark.parametrize("rule", TOLD_BY_HEADERS)
def test_the_failing_checkpoint_gives_exactly_its_rule(rule, tmp_path):
    factory, checkpoint = run(rule.failing_model, tmp_path / "model.py")

    report = fe.verify_weights(factory, checkpoint)

    assert [finding.code for finding in report.findings] == [rule.code]
    assert report.is_bindable == (rule.severity != "error")


@pytest.mark.parametrize("rule", RULES)
def test_the_repaired_checkpoint_gives_nothing(rule, tmp_path):
    factory, checkpoint = run(rule.repaired_model, tmp_path / "model.py")

    assert fe.verify_weights(factory, checkpoint).findings == ()
    assert codes_of_binding(factory, checkpoint, is_hub=rule.code == "FE707") == []


@pytest.mark.parametrize("rule", RULES)
def test_the_binding_tells_the_same(rule, tmp_path):
    factory, checkpoint = run(rule.failing_model, tmp_path / "model.py")

    # FE707 comes from transformers' tables, which a program alone has not.
    assert codes_of_binding(factory, checkpoint, is_hub=rule.code == "FE707") == [rule.code]
