"""Of a condition with several operands, the one that was asked is blamed."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch
from torch import nn

import fakexport as fe


class Model(nn.Module):
    limit = None

    def both(self, x):
        if x is not None and x.any():
            return x
        return -x

    def either(self, x):
        if self.training or (x < 0).any():
            return x
        return -x

    def negated(self, x):
        if x is not None and not x.any():
            return x
        return -x

    def asserted(self, x):
        assert (x >= 0).all() or x.shape[0] > 1, "negative"
        return x

    def chosen(self, x):
        return x if self.limit is None and x.all() else -x

    def chained(self, x):
        if 0 < x.max() < 10:
            return x
        return -x

    def several_lines(self, x):
        if (
            x is not None
            and x.any()
        ):  # fmt: skip
            return x
        return -x

    def value(self, x):
        y = self.limit or x.any()
        return y or x

    def last_value(self, x):
        return self.limit or x.any() or x

    def both_values(self, x):
        return x is not None and x.all() and x

    def loop(self, x):
        while x is not None and x.norm() > 1:
            x = x / 2
        return x

    def comprehension(self, x):
        return [row for row in x if row]

    def forward(self, x):
        return getattr(self, self.which)(x)


@pytest.mark.parametrize(
    ("which", "operand"),
    [
        ("both", "x.any()"),
        ("either", "(x < 0).any()"),
        ("negated", "not x.any()"),
        ("asserted", "(x >= 0).all()"),
        ("chosen", "x.all()"),
        ("chained", "0 < x.max() < 10"),
        ("several_lines", "x.any()"),
        ("value", "y"),
        ("last_value", "x.any()"),
        ("both_values", "x.all()"),
        ("loop", "x.norm() > 1"),
        ("comprehension", "row"),
    ],
)
def test_label_marks_the_operand_that_was_evaluated(which, operand):
    model = Model().eval()
    model.which = which

    report = fe.check(lambda: (model, (torch.ones(3),)))

    span = report.diagnostics[0].primary.span
    line = Path(__file__).read_text().splitlines()[span.line - 1]
    assert line[: span.end_column - 1][span.column - 1 :].strip("()") == operand.strip("()")
    assert report.diagnostics[0].code == ("FE204" if which == "loop" else "FE201")
