"""Conditions on data whose answer the code implies: with the other, `forward` raises or computes the same."""

from __future__ import annotations

import runpy
import textwrap

import pytest
import torch
from torch.fx.experimental.symbolic_shapes import GuardOnDataDependentSymNode

import fakexport as fe
from fakexport.models.sources import resolve
from tests.architectures import Architecture
from tests.unit.exporting.capture.answered_models import FIRST, HEAD, TAIL, eager, exported
from tests.unit.exporting.capture.memo_models import exported_both_ways

ONES, NEGATIVE, ZEROS = torch.ones(2, 4), -torch.ones(2, 4), torch.zeros(2, 4)
MIXED = torch.tensor([[2.0, 2, 2, 2], [-1, 0, 0, 0]])
RAISE = ":\n    raise ValueError('no')\nreturn 2 * x"


def lines(*text):
    return "\n".join(text)


# What `forward` does, inputs that it takes, and inputs with which it raises.
RAISING = {
    "a value": ("if x.sum() < 0" + RAISE, [ONES, ZEROS], [NEGATIVE]),
    "what is negated": ("if not x.any()" + RAISE, [ONES], [ZEROS]),
    "one of two": ("if x.sum() < 0 or x.max() > 1" + RAISE, [ONES], [NEGATIVE, MIXED]),
    "the last of two": ("if x.shape[0] == 2 and x.sum() < 0" + RAISE, [ONES], [NEGATIVE]),
    "the last of two that hold": ("assert x.shape[0] == 1 or x.sum() > 0\nreturn 2 * x", [ONES], [NEGATIVE]),
    "an assertion": ("assert x.sum() > 0 and x.min() >= 0, 'no'\nreturn 2 * x", [ONES], [MIXED, NEGATIVE]),
    "a negated one": ("assert not (x < 0).any()\nreturn 2 * x", [ONES, ZEROS], [MIXED]),
    "the branch that is else": (
        lines("if x.sum() > 0:", "    x = 2 * x", "else:", "    raise ValueError", "return x"),
        [ONES],
        [ZEROS],
    ),
    "a number": ("n = (x > 0).sum().item()\nif n != 8" + RAISE, [ONES], [ZEROS, MIXED]),
    "a chain": ("assert 0 < x.sum() < 9\nreturn 2 * x", [ONES], [ZEROS, 2 * ONES]),
    "a size": (
        lines(
            "rows = x[x > 0]",
            "if rows.numel() != x.numel():",
            "    text = f'{rows.shape}'",
            "    raise ValueError(text)",
            "return rows * 2",
        ),
        [ONES],
        [MIXED],
    ),
    "a constant that does not raise": (
        "t = torch.tensor([1, 2]).to(x.device)\nif t.sum() > 5 or x.sum() < 0" + RAISE,
        [ONES],
        [NEGATIVE],
    ),
    "in a try for other errors": (
        lines("try:", "    assert x.sum() > 0", "except TypeError:", "    return x", "return 2 * x"),
        [ONES],
        [NEGATIVE],
    ),
    "in a try that raises": (
        lines(
            "try:",
            "    assert x.sum() > 0",
            "except AssertionError as no:",
            "    raise TypeError from no",
            "return x",
        ),
        [ONES],
        [NEGATIVE],
    ),
}


@pytest.mark.parametrize(("body", "taken", "refused"), RAISING.values(), ids=list(RAISING))
def test_the_program_refuses_what_eager_mode_refuses(body, taken, refused, written):
    path = written(body)
    model = eager(path)

    program = exported(path).module()

    for x in taken:
        assert torch.equal(program(x), model(x))
    for x in refused:
        with pytest.raises((ValueError, TypeError, AssertionError)):
            model(x)
        with pytest.raises(
            RuntimeError, match=r"forward raises (ValueError|AssertionError) at model\.py:\d+: `.*` is "
        ):
            program(x)


# With the other answer, `forward` may go on too: none is taken for it.
NOT_IMPLIED = {
    "both of two": "if x.sum() < 0 and x.min() < -1" + RAISE,
    "both of two, the other way": "if not (x.sum() > 0 or x.min() > -1)" + RAISE,
    "one of two that hold": "assert x.sum() > 0 or x.max() > 1\nreturn 2 * x",
    "a chain that raises": "if 0 < x.sum() < 3" + RAISE,
    "more than an error": lines("if x.sum() < 0:", "    x.add_(1)", "    raise ValueError", "return x"),
    "an error or not": lines(
        "if x.sum() < 0:", "    if self.training:", "        raise ValueError", "return x"
    ),
    "a caught error": lines(
        "try:",
        "    if x.sum() < 0:",
        "        raise ValueError",
        "except ValueError:",
        "    return x",
        "return 2 * x",
    ),
    "one that is caught by a base": lines(
        "try:", "    assert x.sum() > 0", "except Exception:", "    return x", "return 2 * x"
    ),
    "one of its own that is caught": lines(
        "class No(Exception): ...",
        "try:",
        "    if x.sum() < 0:",
        "        raise No",
        "except No:",
        "    return x",
        "return 2 * x",
    ),
    "the end of an iteration": lines("if x.sum() > 9:", "    raise StopIteration", "return x"),
    "an index that is out of range": lines("if x.sum() > 9:", "    raise IndexError('no')", "return x"),
    "a suppressed error": lines(
        "import contextlib",
        "with contextlib.suppress(AssertionError):",
        "    assert x.sum() > 0",
        "return 2 * x",
    ),
    "any of several": "assert any(row.sum() > 0 for row in x)\nreturn 2 * x",
    "all of several": "if all(row.sum() > 0 for row in x)" + RAISE,
    "one of a list": "assert x.sum() in (8, 9)\nreturn 2 * x",
    "a loop": lines("while x.sum() < 3:", "    raise ValueError", "return x"),
}


@pytest.mark.parametrize("body", NOT_IMPLIED.values(), ids=list(NOT_IMPLIED))
def test_what_does_more_than_raise_is_still_a_question(body, written):
    with pytest.raises(GuardOnDataDependentSymNode):
        exported(written(body))


# What torch raises for want of an answer, and `forward` catches. Stock torch makes a program of the `except`.
CAUGHT = {
    "a condition": ("    if x.sum() > 0:", "        return 3 * x"),
    "an integer": ("    n = int((x > 0).sum())", "    return n * x"),
    "an index": ("    n = (x > 0).sum().tolist()", "    return x * [1, 2, 3][n]"),
    "an array": ("    return x * float(x.numpy().sum())",),
}


@pytest.mark.parametrize(("body"), CAUGHT.values(), ids=list(CAUGHT))
def test_what_the_model_catches_is_still_an_error(body, written):
    path = written(lines("try:", *body, "except Exception:", "    return x", "return x"))

    torch.export.export(eager(path), (ONES,))
    errors = [each for each in fe.check(f"{path}:factory").diagnostics if each.severity == "error"]

    assert errors[0].code in ("FE201", "FE203", "FE205")
    assert FIRST < errors[0].labels[0].span.line <= FIRST + len(body)


# An error in a block, and what the model does with its blocks.
BLOCK = "        if x.max() > 9:\n            raise ValueError\n        return self.linear(x)\n"


def with_raising_blocks(path, body):
    path.write_text(
        HEAD.replace("        return self.linear(x)\n", BLOCK) + textwrap.indent(body, " " * 8) + TAIL
    )
    return path


def test_an_error_that_a_caller_catches_is_still_a_question(tmp_path):
    body = lines("try:", "    return self.blocks[0](x)", "except ValueError:", "    return x")

    with pytest.raises(GuardOnDataDependentSymNode):
        exported(with_raising_blocks(tmp_path / "model.py", body))


def test_every_one_of_equal_blocks_asserts(tmp_path):
    body = lines("for block in self.blocks:", "    x = block(x)", "return x")

    program = exported_both_ways(f"{with_raising_blocks(tmp_path / 'model.py', body)}:factory")

    assert sum("forward raises ValueError" in str(node.args[1:]) for node in program.graph.nodes) == 6


def test_a_constant_that_always_raises_is_found(tmp_path):
    path = tmp_path / "model.py"
    made = "        self.register_buffer('limit', torch.arange(4), persistent=False)\n"
    head = HEAD.replace("        self.blocks", f"{made}        self.blocks")
    path.write_text(head + textwrap.indent("if self.limit.sum() > 3" + RAISE, " " * 8) + TAIL)

    with pytest.raises(ValueError, match="no"):
        exported(path)


def test_exploring_goes_past_it(written):
    path = written("if x.sum() < 0:\n    raise ValueError\nif x.min() > 3:\n    return x\nreturn 2 * x")

    errors = [each for each in fe.check(f"{path}:factory").diagnostics if each.severity == "error"]

    assert [(each.code, each.labels[0].span.line) for each in errors] == [("FE201", FIRST + 2)]


# Lines that write where `m` is set, after `if m.any():`.
WRITES = {
    "a number": "y[m] = 0",
    "a row": "y[m] = x[0, 0].to(x.device, x.dtype)",
    "a view": "y[0:][m] = -1.0",
    "two": "y[m] = 3\n    y[m] = y[m] + 1",
    "in place": "y.masked_fill_(m, torch.finfo(x.dtype).min)",
    "infinity": "y[m] = float('inf')",
}


@pytest.mark.parametrize("lines", WRITES.values(), ids=list(WRITES))
@pytest.mark.parametrize("asked", ["m.any()", "torch.any(m)", "m.any().item()"])
def test_a_write_under_a_mask_needs_no_answer(asked, lines, written):
    path = written(f"m, y = x > 1, x.clone()\nif {asked}:\n    {lines}\nreturn y")
    model = eager(path)

    program = exported(path)

    for x in (ONES, MIXED, 3 * ONES):
        assert torch.equal(program.module()(x), model(x))
    assert not any("item" in str(node.target) for node in program.graph.nodes)


EXPERTS = """import torch
import torch.nn.functional as F
from torch import nn


def counting():
    calls = 0

    def counted(x):
        nonlocal calls
        calls += 1
        return x * calls

    return counted


class Counting(nn.Module):
    def __init__(self):
        super().__init__()
        self.register_buffer("calls", torch.zeros(()))

    def forward(self, x):
        self.calls.add_(1)
        return 2 * x


class Experts(nn.Module):
    def __init__(self):
        super().__init__()
        self.gate = nn.Linear(4, 3)
        self.counted = counting()
        layers = lambda: (nn.Linear(4, 8), nn.ReLU(True), nn.Linear(8, 4))
        self.experts = nn.ModuleList(nn.Sequential(*layers()) for _ in range(3))
        self.last = nn.ReLU(True)
        self.counting = Counting()
        self.shared = nn.Linear(4, 4)

    def forward(self, x):
        scores, chosen = self.gate(x).softmax(-1).topk(1)
        mask = F.one_hot(chosen, 3).permute(2, 1, 0)
        out, seen = torch.zeros_like(x), 0
        for i in range(3):
            rows, tokens = torch.where(mask[i])
{}
        return out + seen


def factory():
    return Experts(), (torch.ones(2, 4),)
"""
# What becomes of the tokens of each expert.
SKIPPING = {
    "skipped": lines(
        "if tokens.numel() == 0:",
        "    continue",
        "states = self.experts[i](x[tokens]) * scores[tokens, rows, None]",
        "out.index_add_(0, tokens, states.to(out.dtype))",
    ),
    "skipped without rows": lines(
        "if tokens.shape[0] == 0:",
        "    continue",
        "expert = self.experts[i]",
        "with torch.no_grad():",
        "    states = expert(x[None, tokens].reshape(-1, 4))",
        "out[tokens] += scores[tokens, rows, None] * states",
    ),
    "taken": lines(
        "if rows.size(0) > 0:",
        "    if i == 2:",
        "        states = x[tokens]",
        "    else:",
        "        states = F.linear(x[tokens], self.shared.weight)",
        "    out[tokens] = out[tokens] + states",
    ),
    "a mask": lines(
        "chosen_here = mask[i, 0] > 0",
        "if not chosen_here.any():",
        "    continue",
        "place, = torch.where(chosen_here)",
        "out[place] = self.experts[i](x[chosen_here])",
    ),
}


def with_experts(path, body):
    path.write_text(EXPERTS.format(textwrap.indent(body, " " * 12)))
    return path


@pytest.mark.parametrize("body", SKIPPING.values(), ids=list(SKIPPING))
def test_an_expert_without_tokens_is_not_skipped_and_adds_nothing(body, tmp_path):
    path = with_experts(tmp_path / "model.py", body)
    torch.manual_seed(0)
    model = runpy.run_path(str(path))["factory"]()[0]

    program = fe.bind(exported(path, dynamic_shapes=["x.0=1..64"]), model.state_dict()).module()

    counts = set()
    for size in (1, 2, 3, 12):
        for seed in range(4):
            x = torch.randn(size, 4, generator=torch.Generator().manual_seed(seed))
            counts |= set(model.gate(x).argmax(-1).bincount(minlength=3).tolist())
            with torch.no_grad():
                torch.testing.assert_close(program(x), model(x))
    assert counts >= {0, 1, 2}  # An expert had as many tokens.


# Here the lines do more than write what is selected, or they cannot do with nothing.
NOT_SKIPPING = {
    "a count": ("seen = seen + 1", "out[tokens] = 1.0"),
    "a value that is read after the loop": ("seen = x[tokens].sum()", "out[tokens] = seen"),
    "a value of the turn before": ("out[tokens] = states", "states = x[tokens].sum()"),
    "a value that some turns leave": (
        "if i == 0:",
        "    states = x[tokens].sum()",
        "out[tokens] = states",
    ),
    "what is all written": ("out[:] = out + 1",),
    "another selection": ("out[i] = 1.0",),
    "a change in place": ("x.mul_(2)", "out[tokens] = x[tokens]"),
    "a change in place by a module": ("states = self.last(x)", "out[tokens] = states[tokens]"),
    "a change in place by a function": ("states = F.relu(x, True)", "out[tokens] = states[tokens]"),
    "an operator in place": ("states = x", "states += 1", "out[tokens] = states[tokens]"),
    "the greatest": ("states = x[tokens].amax(0)", "out[tokens] = states"),
    "the first row": ("first = x[tokens][0]", "out[tokens] = first"),
    "a draw": ("states = torch.rand(4)", "out[tokens] = states"),
    "an attribute": ("self.tokens = tokens", "out[tokens] = 1.0"),
    "a module that counts its calls": ("out[tokens] = self.counting(x[tokens])",),
    "a module that counts, by another name": ("part = self.counting", "out[tokens] = part(x[tokens])"),
    "a function that counts its calls": ("out[tokens] = self.counted(x[tokens])",),
    "an early end": ("out[tokens] = 1.0", "break"),
    "a print": ("print(i)", "out[tokens] = 1.0"),
    "nothing": ("states = x[tokens]",),
}


@pytest.mark.parametrize("body", NOT_SKIPPING.values(), ids=list(NOT_SKIPPING))
def test_what_does_more_for_nothing_is_still_a_question(body, tmp_path):
    refuses_lines_after_a_skip(body, tmp_path)


def test_a_variable_that_others_may_read_is_still_a_question(tmp_path, monkeypatch):
    shared = EXPERTS.replace("        scores, chosen", "        global last\n        scores, chosen")
    monkeypatch.setitem(globals(), "EXPERTS", shared)

    refuses_lines_after_a_skip(("last = x[tokens].sum()", "out[tokens] = last"), tmp_path)


def refuses_lines_after_a_skip(body, tmp_path):
    lines_of_loop = lines("if tokens.numel() == 0:", "    continue", *body)

    with pytest.raises(GuardOnDataDependentSymNode):
        exported(with_experts(tmp_path / "model.py", lines_of_loop))


# What follows `m, y = x > 1, x.clone()`; here the condition makes a difference, or it may.
OTHER_WRITES = {
    "the index of an element": lines("m = m.sum().view(1) * 0", "if m.any():", "    y[m] = 7.0", "return y"),
    "another mask": lines("n = x < 1", "if m.any():", "    y[n] = 7.0", "return y"),
    "the mask itself": lines("if m.any():", "    m[m] = False", "return m"),
    "more than a write": lines("if m.any():", "    y[m] = 7.0", "    y = y + 1", "return y"),
    "another branch": lines("if m.any():", "    y[m] = 7.0", "else:", "    y = y + 1", "return y"),
    "no mask that is empty": lines("if not m.any():", "    y[m] = 7.0", "return y"),
    "a random value": lines("if m.any():", "    y[m] = torch.rand(())", "return y + torch.rand(())"),
    "two questions": lines("if m.any() and x.sum() > 3:", "    y[m] = 7.0", "return y"),
    "a module that counts, by another name": lines(
        "if m.any():", "    part = self.counting", "    y[m] = part(x[m])", "return y"
    ),
    "a dict": lines("y = {}", "if m.any():", "    y[m] = 7.0", "return x + len(y)"),
}


@pytest.mark.parametrize("body", OTHER_WRITES.values(), ids=list(OTHER_WRITES))
def test_another_write_is_still_a_question(body, written):
    path = written("m, y = x > 1, x.clone()\n" + body)
    made = "        self.counting = nn.BatchNorm1d(4)\n        self.blocks"
    path.write_text(path.read_text().replace("        self.blocks", made, 1))

    with pytest.raises(GuardOnDataDependentSymNode):
        exported(path)


OVIS2 = Architecture("ovis2", "AutoModelForImageTextToText", is_common=False)


@pytest.mark.skipif(not OVIS2.is_available, reason="this transformers has no ovis2")
def test_one_program_takes_any_of_the_indicator_tokens(tmp_path):
    source = resolve(OVIS2.source(tmp_path))
    torch.manual_seed(0)
    model = source.factory().eval()
    given = dict(source.example_inputs(model, "cpu", None).kwargs)
    program = fe.bind(fe.export(source), dict(model.state_dict())).module()

    for indicators in ((), (90, 92, 94), (90, 91, 92, 93, 94)):
        ids = given["input_ids"].clone()
        ids[0, -len(indicators) or ids.shape[1] :] = torch.tensor(indicators, dtype=torch.long)
        with torch.no_grad():
            expected = model(**{**given, "input_ids": ids}).logits
            plain = model(**given).logits
        found = program(**{**given, "input_ids": ids})["logits"]

        torch.testing.assert_close(found, expected, rtol=1e-4, atol=1e-5)
        assert torch.allclose(expected, plain) == (not indicators)
