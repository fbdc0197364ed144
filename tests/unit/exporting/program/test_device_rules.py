"""Rules of programs on other devices: the failing model gives exactly its rule, the repaired one nothing."""

from __future__ import annotations

import pytest

import fakexport as fe
from fakexport.rules import all_rules

RULES = [pytest.param(rule, id=rule.code) for rule in all_rules() if rule.fails_on == "retarget"]


def found(rule, source, path):
    path.write_text(source)
    namespace = {"__name__": path.stem}
    exec(compile(source, str(path), "exec"), namespace)
    program = fe.export(namespace["factory"], target=rule.target)
    return fe.inspect_devices(program).diagnostics


def test_there_are_such_rules():
    assert [param.values[0].code for param in RULES] == ["FE501", "FE504"]


@pytest.mark.parametrize("rule", RULES)
def test_the_failing_model_gives_exactly_its_rule_at_the_marked_line(rule, tmp_path):
    path = tmp_path / f"model_{rule.name}.py"

    (diagnostic,) = found(rule, rule.failing_model, path)

    lines = rule.failing_model.splitlines()
    marked = next(number for number, line in enumerate(lines, 1) if line.endswith(f"# <- {rule.code}"))
    assert diagnostic.code == rule.code
    assert (diagnostic.primary.span.path, diagnostic.primary.span.line) == (str(path), marked)


@pytest.mark.parametrize("rule", RULES)
def test_the_repaired_model_gives_nothing(rule, tmp_path):
    assert found(rule, rule.repaired_model, tmp_path / f"model_{rule.name}.py") == ()
