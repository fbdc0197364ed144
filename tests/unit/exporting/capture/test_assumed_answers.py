"""Conditions on data whose answer the caller gives: the program goes that way, and refuses other inputs."""

from __future__ import annotations

import threading

import pytest
import torch
from torch.fx.experimental.symbolic_shapes import ShapeEnv

import fakexport as fe
from fakexport.cli import main
from fakexport.error import InvalidValue
from fakexport.exporting.capture.assumed_answers import AssumedAnswer, UncheckedAssumption, parse_assumed
from tests.unit.exporting.capture.answered_models import FIRST, HEAD, TAIL, eager, exported
from tests.unit.exporting.capture.memo_models import exported_both_ways

ONES, NEGATIVE, ZEROS = torch.ones(2, 4), -torch.ones(2, 4), torch.zeros(2, 4)


# What `forward` does, the answer with which it is exported, and inputs for which it is so, and for which not.
CASES = {
    "a tensor": ("if x.sum() > 0:\n    return x\nreturn 2 * x", "True", ONES, NEGATIVE),
    "the other way": ("if x.sum() > 0:\n    return x\nreturn 2 * x", "False", NEGATIVE, ONES),
    "what is negated": ("if not x.any():\n    return x + 1\nreturn 2 * x", "True", ZEROS, ONES),
    "what is negated, the other way": (
        "if not x.any():\n    return x + 1\nreturn 2 * x",
        "False",
        ONES,
        ZEROS,
    ),
    "a float": ("if x.mean().item() > 0.5:\n    return x\nreturn 2 * x", "True", ONES, ZEROS),
    "an integer": ("if (x > 0).sum().item() > 3:\n    return x\nreturn 2 * x", "False", ZEROS, ONES),
    "a size": ("if x.nonzero().shape[0] > 3:\n    return x\nreturn 2 * x", "True", ONES, ZEROS),
    "an empty selection": (
        "x = x[x > 0]\nif x.numel() == 0:\n    return x\nreturn x - x[:1]",
        "False",
        torch.arange(8.0).view(2, 4),
        ZEROS,
    ),
    "what is not an empty selection": (
        "x = x[x > 0]\nif not x.numel():\n    return x\nreturn x - x[:1]",
        "False",
        torch.arange(8.0).view(2, 4),
        ZEROS,
    ),
    "an empty selection, the other way": (
        "rows = x.nonzero()\nif rows.shape[0] == 0:\n    return x + 1\nreturn rows",
        "True",
        ZEROS,
        ONES,
    ),
    "all that can be": (
        "x = x[x > 0]\nif 8 - x.shape[0] > 0:\n    return x + 1\nreturn x[:8]",
        "False",
        ONES,
        ZEROS,
    ),
    "a bounded integer": (
        "n = (x > 0).sum().item()\ntorch._check(n >= 0)\ntorch._check(n <= 8)\n"
        "if n > 3:\n    return x\nreturn 2 * x",
        "True",
        ONES,
        ZEROS,
    ),
    "a conditional expression": ("return x if x.sum() > 0 else 2 * x", "False", NEGATIVE, ONES),
    "an assertion": ("assert x.sum() > 0\nreturn 2 * x", "True", ONES, NEGATIVE),
}


@pytest.mark.parametrize(("body", "answer", "taken", "refused"), CASES.values(), ids=list(CASES))
def test_the_program_computes_what_eager_mode_does_or_refuses(body, answer, taken, refused, written):
    path = written(body)
    line = FIRST + body.split("if ")[0].count("\n") if "\nif " in body else FIRST

    program = exported(path, f"model.py:{line}={answer}").module()

    assert torch.equal(program(taken), eager(path)(taken))
    with pytest.raises(
        RuntimeError, match=rf"exported under the assumption that `.*` is {answer}, at model\.py:{line}$"
    ):
        program(refused)


def test_two_conditions_of_a_line_are_named_by_their_columns(written):
    path = written("if x.sum() > 0 and x.min() > 0:\n    return x\nreturn 2 * x")
    first, second = f"model.py:{FIRST}:12", f"model.py:{FIRST}:28"

    with pytest.raises(
        InvalidValue, match=f"more than one condition .* separate assumptions for {first} and {second}"
    ):
        exported(path, f"model.py:{FIRST}=True")
    program = exported(path, f"{first}=True", f"{second}=False").module()

    taken = torch.tensor([[2.0, 2, 2, 2], [-1, 0, 0, 0]])
    assert torch.equal(program(taken), 2 * taken)
    for refused in (ONES, NEGATIVE):
        with pytest.raises(RuntimeError, match="exported under the assumption"):
            program(refused)


def test_every_one_of_equal_blocks_is_checked(written):
    path = written(
        "for block in self.blocks:\n    if x.max() > 9:\n        x = x / 2\n    x = block(x)\nreturn x"
    )
    assumed = [f"model.py:{FIRST + 1}=False"]

    program = exported_both_ways(f"{path}:factory", assume=assumed)

    asserted = [node for node in program.graph.nodes if "exported under the assumption" in str(node.args[1:])]
    assert len(asserted) == 6


def test_a_condition_inside_of_equal_blocks_is_checked_in_each(tmp_path):
    path = tmp_path / "model.py"
    inner = "        if x.max() > 9:\n            x = x / 2\n        return self.linear(x)\n"
    outer = "        for block in self.blocks:\n            x = block(x)\n        return x\n"
    path.write_text(HEAD.replace("        return self.linear(x)\n", inner) + outer + TAIL)
    place = HEAD[: HEAD.index("        return self.linear")].count("\n") + 1

    program = exported_both_ways(f"{path}:factory", assume=[f"model.py:{place}=False"])

    assert sum("exported under the assumption" in str(node.args[1:]) for node in program.graph.nodes) == 6
    model = eager(path)
    bound = fe.bind(program, model.state_dict()).module()
    with torch.no_grad():
        assert torch.equal(bound(ONES), model(ONES))
    with pytest.raises(RuntimeError, match=f"`x.max\\(\\) > 9` is False, at model.py:{place}"):
        bound(10 * ONES)


def test_a_loaded_program_says_the_same(written, tmp_path):
    path = written("if x.sum() > 0:\n    return x\nreturn 2 * x")
    fe.save(exported(path, f"{path}:{FIRST}=true"), tmp_path / "model.pt2")

    program = fe.bind(fe.load(tmp_path / "model.pt2"), eager(path).state_dict())

    for each, said in (
        (program, rf"`x.sum\(\) > 0` is True, at {path}:{FIRST}$"),
        (program.run_decompositions(), ""),
    ):
        assert torch.equal(each.module()(ONES), ONES)
        with pytest.raises(RuntimeError, match=said or "Runtime assertion failed"):
            each.module()(NEGATIVE)


@pytest.mark.parametrize("condition", ["x.shape[0] > 1", "self.training"])
def test_a_condition_that_is_known_is_no_assumption(condition, written):
    path = written(f"if {condition}:\n    return x\nreturn 2 * x")

    with pytest.raises(
        InvalidValue,
        match=f"the line at model.py:{FIRST} has no data-dependent condition, so there is nothing to assume",
    ):
        exported(path, f"model.py:{FIRST}=False")


def test_a_loop_needs_both_answers(written):
    path = written("while x.sum() < 100:\n    x = 2 * x\nreturn x")

    for answer in ("True", "False"):
        with pytest.raises(InvalidValue, match="controls a loop: its value must change"):
            exported(path, f"model.py:{FIRST}={answer}")


def test_a_line_that_asks_for_a_number_is_no_condition(written):
    path = written("for _ in range(int(x.sum())):\n    x = 2 * x\nreturn x")

    with pytest.raises(InvalidValue, match="no data-dependent condition"):
        fe.check(f"{path}:factory", assume=[f"model.py:{FIRST}=True"])


def test_an_assumption_that_the_program_cannot_check_is_a_fault_of_fakexport(written, monkeypatch):
    path = written("if x.sum() > 0:\n    return x\nreturn 2 * x")
    monkeypatch.setattr(ShapeEnv, "guard_or_defer_runtime_assert", lambda *args, **options: True)

    with pytest.raises(UncheckedAssumption, match="does not assert Eq"):
        exported(path, f"model.py:{FIRST}=True")


def test_the_report_says_what_is_assumed(written, capsys):
    path = written("if x.sum() < 0:\n    return x\nif x.min() < 0:\n    return 2 * x\nreturn x")
    source, option = f"{path}:factory", f"model.py:{FIRST}=False"

    report = fe.check(source, assume=[option])
    (found,) = report.diagnostics
    code = main(["check", source, "--assume", option, "--assume", f"model.py:{FIRST + 2}=False"])

    assert found.fix.message.startswith(
        f"if `x.min() < 0` is False for every input, pass `--assume model.py:{FIRST + 2}=False`: the program "
        "then rejects other inputs; if not, "
    )
    assert code == 0
    assert (
        f"the condition at model.py:{FIRST} is assumed to be False; the program checks it"
        in capsys.readouterr().out
    )


@pytest.mark.parametrize(
    "text", ["model.py=True", "model.py:0=True", "model.py:3=1.0", "model.py:3=yes", ":3=True", "model.py:3"]
)
def test_other_texts_are_refused(text, capsys):
    with pytest.raises(InvalidValue, match="write FILE:LINE=True or FILE:LINE=False for a condition"):
        parse_assumed([text])


def test_texts_are_read():
    assert parse_assumed([r"C:\models\a.py:3:5=true", "b.py:4=False", "b.py:5=-7"]) == (
        AssumedAnswer(r"C:\models\a.py", 3, 5, True),
        AssumedAnswer("b.py", 4, None, False),
        AssumedAnswer("b.py", 5, None, -7),
    )
    (one,) = parse_assumed(["b.py:5=1"])
    assert (one.kind, one.answer) == ("number", 1)
    with pytest.raises(InvalidValue, match=r"there are two assumptions for the condition at b\.py:4"):
        parse_assumed(["b.py:4=True", "b.py:4=False"])
    with pytest.raises(InvalidValue, match="strict mode"):
        fe.export(lambda: None, strict=True, assume=["b.py:4=True"])


def test_a_trace_that_is_made_again_counts_alone(written):
    """A constant is read in a second trace, after the condition of the first."""
    path = written("if x.sum() > 0 and self.step > 1:\n    return self.step * x\nreturn 2 * x")
    path.write_text(
        path.read_text().replace(
            "        self.blocks =",
            '        self.register_buffer("step", torch.tensor(3), persistent=False)\n        self.blocks =',
        )
    )

    program = exported(path, f"model.py:{FIRST + 1}:12=True").module()

    assert torch.equal(program(ONES), 3 * ONES)
    with pytest.raises(RuntimeError, match="exported under the assumption"):
        program(NEGATIVE)


def test_two_threads_have_answers_of_their_own(written):
    path = written("if x.sum() > 0:\n    return x\nreturn 2 * x")
    programs = {}

    def export(answer):
        programs[answer] = exported(path, f"model.py:{FIRST}={answer}").module()

    threads = [threading.Thread(target=export, args=(answer,)) for answer in ("True", "False")]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()

    assert torch.equal(programs["True"](ONES), ONES)
    assert torch.equal(programs["False"](NEGATIVE), 2 * NEGATIVE)
    for answer, refused in (("True", NEGATIVE), ("False", ONES)):
        with pytest.raises(RuntimeError, match=f"is {answer}, at model.py"):
            programs[answer](refused)


BRANCH = """def yes(x):
    {question}
    return 3 * x

def no(x):
    return x + 1

return torch.cond(x.sum() > 0, yes, no, (x,))
"""


def test_a_condition_in_a_branch_of_cond_stays_a_finding(written):
    """TorchDynamo traces a branch, which takes no answers."""
    path = written(BRANCH.format(question="if x.max() > 1:\n        return 2 * x"))

    for assume in ((), (f"model.py:{FIRST + 1}=False",)):
        report = fe.check(f"{path}:factory", assume=assume)

        assert [found.severity for found in report.diagnostics] == ["error"]
        assert not any(verdict.is_exportable for verdict in report.verdicts)


def test_a_number_in_a_branch_of_cond_is_refused(written):
    path = written(BRANCH.format(question="for _ in range(x.long().max().item()):\n        x = x + 1"))

    with pytest.raises(InvalidValue, match="nothing to assume"):
        fe.check(f"{path}:factory", assume=[f"model.py:{FIRST + 1}=1"])


def test_a_retargeted_program_refuses_the_same(written):
    path = written("if x.sum() > 0:\n    return x + torch.ones(4, device=x.device)\nreturn 2 * x")
    program = exported(path, f"model.py:{FIRST}=True", target="H100")

    moved = fe.retarget(program, {"cuda:0": "cpu"}).module()

    assert torch.equal(moved(ONES), ONES + 1)
    with pytest.raises(RuntimeError, match=rf"`x.sum\(\) > 0` is True, at model.py:{FIRST}$"):
        moved(NEGATIVE)


def test_a_lock_is_of_the_answer(written, monkeypatch, tmp_path, capsys):
    written("if x.sum() > 0:\n    return x\nreturn 2 * x")
    monkeypatch.chdir(tmp_path)
    (tmp_path / "pyproject.toml").write_text("")
    same, other = (f"--assume=model.py:{FIRST}={answer}" for answer in ("True", "False"))

    locked = main(["lock", "model.py:factory", same])
    codes = [main(["check", "model.py:factory", "--locked", option]) for option in (same, other)]

    assert (locked, codes) == (0, [0, 1])
