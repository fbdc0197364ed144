"""Repeats of one cause become one finding; different causes stay apart."""

from __future__ import annotations

from typing import Any

from fakexport.rules.diagnostics import Diagnostic, Fix, Label, Span, fold


def found(line: int | None = 7, message: str = "", **fields: Any) -> Diagnostic:
    labels = () if line is None else (Label(Span("model.py", line, 5, 9), message),)
    headline: dict[str, Any] = {"code": "FE201", "severity": "error", "message": "headline"}
    return Diagnostic(**headline | {"labels": labels} | fields)


def test_126_equal_layers_give_one_finding_with_a_count() -> None:
    layers = [found(module_path=f"model.layers.{i}.mlp", node=f"mul_{i}") for i in range(126)]

    (folded,) = fold(layers)

    assert folded.count == 126
    assert folded.module_path == "model.layers.0.mlp"
    assert folded.node == "mul_0"


def test_numbers_in_the_label_do_not_keep_repeats_apart() -> None:
    first, second = found(message="weight on cuda:0"), found(message="weight on cuda:1")

    assert [d.count for d in fold([first, second])] == [2]


def test_different_causes_stay_apart() -> None:
    different = [
        found(),
        found(line=8),
        found(code="FE202"),
        found(module_path="encoder.layers.0"),
        found(module_path="decoder.layers.0"),
        found(message="acme::scale has no fake kernel"),
        found(message="acme::shift has no fake kernel"),
    ]

    assert fold(different) == tuple(different)


def test_findings_without_a_place_merge_only_if_they_say_the_same() -> None:
    first, second = found(None, notes=("cuda:0 needs 103 GB",)), found(None, notes=("cuda:1 needs 90 GB",))

    folded = fold([first, second, first])

    assert [(d.notes, d.count) for d in folded] == [(first.notes, 2), (second.notes, 1)]


def test_findings_without_a_place_merge_where_only_the_path_of_the_module_differs() -> None:
    layers = [
        found(None, module_path=f"layers.{i}.conv", notes=(f"`layers.{i}.conv.{name}` was changed",))
        for i in range(24)
        for name in ("steps", "last")
    ]

    folded = fold(layers)

    assert [(d.notes, d.count) for d in folded] == [(layers[0].notes, 24), (layers[1].notes, 24)]


def test_targets_merge_and_the_count_speaks_of_one_program() -> None:
    on_cpu = [found(targets=("cpu",), node="mul_1"), found(targets=("cpu",), node="mul_2")]
    on_gpu = [found(targets=("H100",), node="mul_7"), found(targets=("H100",), node="mul_8")]

    (folded,) = fold(on_cpu + on_gpu)

    assert folded.targets == ("cpu", "H100")
    assert folded.count == 2
    assert folded.node == "mul_1"


def test_targets_that_show_something_else_stay_apart() -> None:
    on_h100 = found(targets=("H100",), notes=("needs sm_80",))
    on_t4 = found(targets=("T4",), notes=("T4 is sm_75",))

    assert fold([on_h100, on_t4]) == (on_h100, on_t4)


def test_a_condition_of_one_target_is_left_out_of_the_fix_for_several() -> None:
    general = Fix("use `torch.where`")
    special = Fix.under("`x > 0` is False", "write `False`", otherwise=general)
    one, other = found(fix=special, targets=("cpu",)), found(fix=general, targets=("H100",))

    assert fold([one])[0].fix == special
    for findings in ([one, other], [other, one]):
        (folded,) = fold(findings)
        assert folded.fix == general
        assert set(folded.targets) == {"cpu", "H100"}
        assert fold([folded]) == (folded,)
    assert fold([one, found(fix=special, targets=("H100",))])[0].fix == special
    assert len(fold([one, found(fix=Fix("use `torch.cond`"), targets=("H100",))])) == 2


def test_a_finding_of_no_target_does_not_become_one_of_a_target() -> None:
    assert [d.targets for d in fold([found(), found(targets=("cpu",))])] == [(), ("cpu",)]


def test_folding_twice_changes_nothing() -> None:
    mixed = [
        found(targets=("cpu",), notes=("a",)),
        found(targets=("cpu", "H100"), notes=("b",), count=3),
        found(targets=("H100",), notes=("a",)),
        found(None),
        found(None),
    ]

    once = fold(mixed)

    assert fold(once) == once
