"""Each rule's failing model gives exactly this rule, at the marked line; its repaired model gives nothing."""

from __future__ import annotations

import pytest

import fakexport as fe
from fakexport.rules import all_rules

SHOWN = [pytest.param(rule, id=f"{rule.code}-{rule.name}") for rule in all_rules() if rule.failing_model]


def checked(rule, source, folder, *, strict=False):
    path = folder / f"model_{rule.name}.py"
    path.write_text(source)
    dynamic = [f"{dim}={sizes}" for dim, sizes in (rule.dynamic or {}).items()]
    return fe.check(f"{path}:factory", targets=[rule.target], dynamic_shapes=dynamic, strict=strict)


def marked_line(rule):
    lines = rule.failing_model.splitlines()
    return next(number for number, line in enumerate(lines, 1) if line.endswith(f"# <- {rule.code}"))


@pytest.mark.parametrize("rule", SHOWN)
def test_the_failing_model_gives_exactly_its_rule(rule, tmp_path):
    report = checked(rule, rule.failing_model, tmp_path)

    assert [diagnostic.code for diagnostic in report.diagnostics] == [rule.code]
    assert report.verdicts[0].is_exportable == (rule.fails_on == "never")


@pytest.mark.parametrize("rule", [p for p in SHOWN if p.values[0].code != "FE503"])
def test_the_diagnostic_points_at_the_marked_line(rule, tmp_path):
    report = checked(rule, rule.failing_model, tmp_path)

    (diagnostic,) = report.diagnostics
    assert diagnostic.primary is not None
    assert diagnostic.primary.span.path.endswith(f"model_{rule.name}.py")
    assert diagnostic.primary.span.line == marked_line(rule)
    assert diagnostic.targets == (report.verdicts[0].target.name,)


@pytest.mark.parametrize("rule", SHOWN)
def test_the_repaired_model_gives_nothing(rule, tmp_path):
    report = checked(rule, rule.repaired_model, tmp_path)

    assert report.diagnostics == ()
    assert report.is_clean


# torch 2.13 in strict mode: FE401 and FE202 come with another error and no frame of the user.
IN_STRICT_MODE = ["FE201", "FE203", "FE301", "FE302"]


@pytest.mark.parametrize("code", IN_STRICT_MODE)
def test_strict_mode_finds_the_same_line(code, tmp_path):
    rule = next(rule for rule in all_rules() if rule.code == code)

    report = checked(rule, rule.failing_model, tmp_path, strict=True)

    (diagnostic,) = report.diagnostics
    assert diagnostic.code == code
    assert diagnostic.primary.span.line == marked_line(rule)


def test_several_targets_share_one_diagnostic(tmp_path):
    rule = next(rule for rule in all_rules() if rule.code == "FE201")
    path = tmp_path / "model.py"
    path.write_text(rule.failing_model)

    report = fe.check(f"{path}:factory", targets=["cpu", "H100"])

    (diagnostic,) = report.diagnostics
    assert diagnostic.targets == ("cpu", "H100")
