"""Integers that Python reads from data and the caller knows: the program is of them, and refuses others."""

from __future__ import annotations

import pytest
import torch

import fakexport as fe
from fakexport.error import InvalidValue
from tests.unit.exporting.capture.answered_models import FIRST, HEAD, TAIL, eager, exported
from tests.unit.exporting.capture.memo_models import exported_both_ways

ONES, TWOS, ZEROS = torch.ones(2, 4), 2 * torch.ones(2, 4), torch.zeros(2, 4)
LARGEST = "n = x.long().max().item()\n"

# What `forward` does, with the number read in its last line but one, the number, inputs that have it, and
# inputs that have another one.
CASES = {
    "a loop": ("for _ in range(int(x.long().sum())):\n    x = 2 * x\nreturn x", 8, ONES, ZEROS),
    "no loop": ("for _ in range(int(x.long().sum())):\n    x = 2 * x\nreturn x", 0, ZEROS, ONES),
    "an index": (f"{LARGEST}y = [x, x + 1, x + 2][n]\nreturn y", 2, TWOS, ONES),
    "a negative index": ("y = [x, x + 1, x + 2][x.long().min().item()]\nreturn y", -1, -ONES, ONES),
    "a list": (f"{LARGEST}y = [0.0] * n\nreturn x + torch.tensor(y)", 4, 4 * ONES, 3 * ONES),
    "a function of Python": (f"import math\n{LARGEST}y = math.sqrt(n)\nreturn x * y", 2, TWOS, ONES),
    "a product": (
        "for _ in range(x.long()[0, 0].item() * x.shape[1]):\n    x = x + 1\nreturn x",
        8,
        TWOS,
        ONES,
    ),
    "of a list": ("a, b = x.long()[:, 0].tolist()\ny = [b] * a\nreturn x + len(y)", 2, TWOS, ONES),
    "bounded": (
        f"{LARGEST}torch._check(n >= 0)\ntorch._check(n <= 4)\ny = [x] * n\nreturn torch.stack(y)",
        2,
        TWOS,
        ONES,
    ),
    "a size before": (f"{LARGEST}z = x.new_ones(n)\ny = [z] * n\nreturn torch.stack(y)", 2, TWOS, ONES),
    "the number of rows": (
        "rows = x.nonzero()\ny = len([x] * rows.shape[0])\nreturn rows * y",
        8,
        TWOS,
        torch.tensor([[1.0, 0, 0, 0], [0, 0, 0, 0]]),
    ),
}


def place_of(body):
    lines = body.split("\n")
    number = next(i for i, line in enumerate(lines) if line.startswith(("for", "y =")))
    return f"model.py:{FIRST + number}"


@pytest.mark.parametrize(("body", "number", "taken", "refused"), CASES.values(), ids=list(CASES))
def test_the_program_computes_what_eager_mode_does_or_refuses(body, number, taken, refused, written):
    path, place = written(body), place_of(body)

    program = exported(path, f"{place}={number}").module()

    assert torch.equal(program(taken), eager(path)(taken))
    with pytest.raises(RuntimeError, match=rf"under the assumption that `.*` is {number}, at {place}$"):
        program(refused)


def test_the_program_takes_other_sizes_and_refuses_other_numbers(written):
    body = "for _ in range(x.shape[0] + x.long().max().item()):\n    x = 2 * x\nreturn x"
    path = written(body)

    program = exported(path, f"{place_of(body)}=3", dynamic_shapes="auto").module()

    for taken in (ONES, torch.zeros(3, 4), torch.ones(2, 7)):
        assert torch.equal(program(taken), eager(path)(taken))
    for refused in (TWOS, torch.ones(3, 4), torch.ones(4, 4)):
        with pytest.raises(RuntimeError, match="exported under the assumption that `range"):
            program(refused)


def test_a_number_inside_of_equal_blocks_is_checked_in_each(tmp_path):
    path = tmp_path / "model.py"
    inner = (
        "        for _ in range(int((x > 9).sum())):\n            x = x / 2\n        return self.linear(x)\n"
    )
    last = "        for block in self.blocks:\n            x = block(x) if block is not self.blocks[-1] else "
    path.write_text(
        HEAD.replace("        return self.linear(x)\n", inner)
        + f"{last}block(x + y)\n        return x\n{TAIL}"
    )
    text = path.read_text().replace(
        "def forward(self, x):\n        for block", "def forward(self, x, y):\n        for block"
    )
    path.write_text(text.replace("torch.ones(2, 4),)", "torch.ones(2, 4), torch.ones(2, 4))"))
    place = HEAD[: HEAD.index("        return self.linear")].count("\n") + 1

    program = exported_both_ways(f"{path}:factory", assume=[f"model.py:{place}=0"])

    model = eager(path)
    bound = fe.bind(program, model.state_dict()).module()
    with torch.no_grad():
        assert torch.equal(bound(ONES, ONES.clone()), model(ONES, ONES))
    for x, y in ((10 * ONES, ONES), (ONES, 20 * ONES)):  # In the first block, and in the last one.
        with pytest.raises(RuntimeError, match=rf"`int\(\(x > 9\).sum\(\)\)` is 0, at model.py:{place}$"):
            bound(x, y)


def test_a_loaded_program_says_the_same(written, tmp_path):
    body, number, taken, refused = CASES["a loop"]
    path = written(body)
    fe.save(exported(path, f"{path}:{FIRST}={number}"), tmp_path / "model.pt2")

    program = fe.bind(fe.load(tmp_path / "model.pt2"), eager(path).state_dict())

    for each in (program, program.run_decompositions()):
        assert torch.equal(each.module()(taken), eager(path)(taken))
        with pytest.raises(RuntimeError, match=r"is 8, at .*model\.py|Runtime assertion failed"):
            each.module()(refused)


@pytest.mark.parametrize(
    ("body", "said"),
    [
        (
            "for n in x.long()[0].tolist():\n    x = x + len([0] * n)\nreturn x",
            "reads more than one number per call, in a loop or from a list",
        ),
        (
            "z = x\nx = [len([0] * n) for n in x.long()[0].tolist()]\nreturn z",
            "reads more than one number per call, in a loop or from a list",
        ),
        (
            f"{LARGEST}a, b = [x] * n, [x] * x.long().min().item()\nreturn torch.stack(a + b)",
            r"more than one number at .* separate assumptions for model.py:\d+:16 and model.py:\d+:25",
        ),
        (
            "n = torch.tensor(3)\ny = [x] * n.item()\nreturn torch.stack(y)",
            "no integer that Python reads from a tensor",
        ),
        ("n = x.shape[0]\ny = [x] * n\nreturn torch.stack(y)", "no integer that Python reads from a tensor"),
        (
            f"{LARGEST[:-1]}; torch._check(n >= 4)\ny = [x] * n\nreturn torch.stack(y)",
            r"the number at model.py:\d+ cannot be 1: it is known to be at least 4",
        ),
        (
            f"{LARGEST[:-1]}; torch._check(n <= 0)\ny = [x] * n\nreturn torch.stack(y)",
            r"the number at model.py:\d+ cannot be 1: it is known to be at most 0",
        ),
    ],
    ids=["a loop", "a comprehension", "two of a line", "a constant", "a size", "too small", "too large"],
)
def test_what_is_not_one_number_is_refused(body, said, written):
    path = written(body)

    with pytest.raises(InvalidValue, match=said):
        fe.check(f"{path}:factory", assume=[f"model.py:{FIRST + 1}=1"])


def test_two_numbers_of_a_line_are_named_by_their_columns(written):
    path = written(f"{LARGEST}a, b = [x] * n, [x] * x.long().min().item()\nreturn torch.stack(a + b)")
    place = f"model.py:{FIRST + 1}"

    program = exported(path, f"{place}:16=2", f"{place}:25=1").module()

    taken = torch.tensor([[1.0, 2, 1, 1], [1, 1, 1, 1]])
    assert torch.equal(program(taken), eager(path)(taken))
    for refused in (ONES, TWOS):
        with pytest.raises(RuntimeError, match="exported under the assumption"):
            program(refused)


@pytest.mark.parametrize("text", ["True", "1"])
def test_an_answer_of_the_other_kind_leaves_the_finding(text, written):
    number = "for _ in range(int(x.long().sum())):\n    x = 2 * x\nreturn x"
    condition = "if x.sum() > 0:\n    return x\nreturn 2 * x"
    path = written(number if text == "True" else condition)

    with pytest.raises(InvalidValue, match="nothing to assume"):
        fe.check(f"{path}:factory", assume=[f"model.py:{FIRST}={text}"])


def test_a_number_that_is_known_is_named_by_the_report(written):
    body, number, _, _ = CASES["a loop"]
    path = written(body)

    report = fe.check(f"{path}:factory", assume=[f"model.py:{FIRST}={number}"])

    assert report.is_clean
    assert f"the number at model.py:{FIRST} is assumed to be {number}; the program checks it" in str(report)
