"""Each rule's failing model gives exactly this rule, at the marked line; its repaired model gives nothing."""

from __future__ import annotations

from functools import cache

import pytest
import torch
from torch import nn

import fakexport as fe
from fakexport.report import render_report
from fakexport.rules import all_rules, rule

# Rules of weights need a checkpoint: tests/unit/archive/weights/test_weight_rules.py; those of programs on
# other devices: tests/unit/exporting/program/test_device_rules.py; those of compilers: tests/unit/deploy/.
SHOWN = [
    pytest.param(rule, id=f"{rule.code}-{rule.name}")
    for rule in all_rules()
    if rule.failing_model and rule.fails_on not in ("weights", "retarget", "compile")
]


@pytest.fixture(autouse=True)
def no_seed():
    """Nobody chose a seed, whichever test ran before."""
    with torch.random.fork_rng(devices=[]):
        torch.seed()
        yield


def checked(rule, source, folder, *, strict=None, target=None):
    strict = rule.is_strict if strict is None else strict
    path = folder / f"model_{rule.name}.py"
    path.write_text(source)
    dynamic = [f"{dim}={sizes}" for dim, sizes in (rule.dynamic or {}).items()]
    return fe.check(f"{path}:factory", target=[target or rule.target], dynamic_shapes=dynamic, strict=strict)


@pytest.fixture(scope="module")
def report_of_failing(tmp_path_factory):
    """The report of a rule's failing model, made once."""
    folder = tmp_path_factory.mktemp("failing")
    return cache(lambda code: checked(rule(code), rule(code).failing_model, folder))


def marked_line(rule):
    lines = rule.failing_model.splitlines()
    return next(number for number, line in enumerate(lines, 1) if line.endswith(f"# <- {rule.code}"))


# About inputs, which a program does not place, or about all weights together.
WITHOUT_PLACE = {"FE207", "FE303", "FE305", "FE503"}


@pytest.mark.parametrize("rule", SHOWN)
def test_the_failing_model_gives_exactly_its_rule_at_the_marked_line(rule, report_of_failing):
    report = report_of_failing(rule.code)

    (diagnostic,) = report.diagnostics
    assert diagnostic.code == rule.code
    assert report.verdicts[0].is_exportable == (rule.fails_on == "never")
    if rule.code not in WITHOUT_PLACE:
        assert diagnostic.primary.span.path.endswith(f"model_{rule.name}.py")
        assert diagnostic.primary.span.line == marked_line(rule)
        assert diagnostic.targets == (report.verdicts[0].target.name,)


# By default every third.
ELSEWHERE = [
    pytest.param(*case.values, id=case.id, marks=pytest.mark.slow if index % 3 else ())
    for index, case in enumerate(case for case in SHOWN if case.values[0].target == "cpu")
]


@pytest.mark.parametrize("rule", ELSEWHERE)
def test_rule_of_a_cpu_target_applies_to_a_gpu_target(rule, tmp_path):
    failing = checked(rule, rule.failing_model, tmp_path, target="H100")
    repaired = checked(rule, rule.repaired_model, tmp_path, target="H100")

    assert [diagnostic.code for diagnostic in failing.diagnostics] == [rule.code]
    assert repaired.diagnostics == ()


@pytest.mark.parametrize("rule", SHOWN)
def test_the_repaired_model_gives_nothing(rule, tmp_path):
    report = checked(rule, rule.repaired_model, tmp_path)

    assert report.diagnostics == ()
    assert report.is_clean


# torch 2.13 in strict mode: FE401 and FE202 come with another error and no frame of the user.
IN_STRICT_MODE = ["FE201", "FE203", "FE204", "FE301", "FE302"]


@pytest.mark.parametrize("code", IN_STRICT_MODE)
def test_strict_mode_finds_the_same_line(code, tmp_path):
    rule = next(rule for rule in all_rules() if rule.code == code)

    report = checked(rule, rule.failing_model, tmp_path, strict=True)

    (diagnostic,) = report.diagnostics
    assert diagnostic.code == code
    assert diagnostic.primary.span.line == marked_line(rule)


CONSTANTS = ["FE601", "FE602", "FE603"]


@pytest.mark.parametrize("code", CONSTANTS)
@pytest.mark.parametrize("strict", [False, pytest.param(True, marks=pytest.mark.slow)])
def test_a_constant_without_a_value_is_found_on_every_target(code, strict, tmp_path):
    rule = next(rule for rule in all_rules() if rule.code == code)
    path = tmp_path / "model.py"
    path.write_text(rule.failing_model)

    report = fe.check(f"{path}:factory", target=["cpu", "H100"], strict=strict)

    (diagnostic,) = report.diagnostics
    assert (diagnostic.code, diagnostic.targets) == (code, ("cpu", "H100"))
    assert diagnostic.primary.span.line == marked_line(rule)
    assert report.is_clean
    assert "the program is incomplete" in render_report(report)


def test_same_constant_in_all_layers_is_one_diagnostic():
    class Layer(nn.Module):
        def __init__(self):
            super().__init__()
            self.weight = nn.Parameter(torch.ones(3))
            self.register_buffer("peak", self.weight.detach().amax(), persistent=False)

        def forward(self, x):
            return x * self.weight / self.peak

    layers = lambda: (nn.Sequential(*[Layer() for _ in range(12)]), (torch.zeros(3),))  # noqa: E731

    (diagnostic,) = fe.check(layers).diagnostics

    assert (diagnostic.code, diagnostic.count, diagnostic.module_path) == ("FE601", 12, "0")
    assert diagnostic.notes == (
        "0.peak: it is computed from the parameter 0.weight, which aten.amax.default reads",
    )


def test_unused_constant_has_no_label():
    class Unused(nn.Linear):
        def __init__(self):
            super().__init__(3, 3)
            self.register_buffer("noise", torch.empty(3), persistent=False)

    (diagnostic,) = fe.check(lambda: (Unused(), (torch.zeros(3),))).diagnostics

    assert (diagnostic.code, diagnostic.labels) == ("FE603", ())
    assert diagnostic.notes == ("noise: it reads uninitialized memory of aten.empty.memory_format",)


def test_missing_kernel_note_is_only_the_first_sentence(report_of_failing):
    (diagnostic,) = report_of_failing("FE603").diagnostics

    assert diagnostic.notes == (
        "rotation: acme.hadamard.default fails on the CPU: Could not run 'acme::hadamard' with arguments "
        "from the 'CPU' backend",
    )
