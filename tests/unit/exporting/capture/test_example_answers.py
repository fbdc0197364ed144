"""A printed `--assume` names the answer that the example inputs give, and exports when it is passed."""

from __future__ import annotations

import re
import runpy

import pytest
import torch
from torch import nn

import fakexport as fe
from tests.unit.report.diagnose.repair_corpus import Failing

CASES = {
    "negated finite": (
        "if not torch.isfinite(x).all():\n    x = x.clamp(-1, 1)\nreturn x * 2",
        "torch.randn(2, 4)",
        "False",
    ),
    "finite after a layer": (
        "y = self.layer(x)\nif torch.isfinite(y).all():\n    return y + 1\nreturn y.clamp(-1, 1)",
        "torch.randn(2, 4)",
        "True",
    ),
    "mask of ones": (
        "if (x > -9).all():\n    return x + 1\nreturn x.masked_select(x > 0).sum()",
        "torch.ones(4)",
        "True",
    ),
    "number that is compared": (
        "n = x.sum().item()\nif n > 3:\n    return x + 1\nreturn x - 1",
        "torch.ones(4)",
        "True",
    ),
    "flag that is read first": (
        "flag = (x > 0).all().item()\nif flag:\n    return x + 1\nreturn x - 1",
        "torch.ones(4)",
        "True",
    ),
    "integer": (
        "n = x.sum().item()\nreturn sum([x] * n)",
        "torch.ones(4, dtype=torch.int64)",
        "4",
    ),
}


@pytest.mark.parametrize("target", ["cpu", "H100"])
@pytest.mark.parametrize("name", CASES)
def test_the_printed_answer_is_that_of_the_example_inputs(name, target, tmp_path):
    body, args, answer = CASES[name]
    path = tmp_path / "model.py"
    path.write_text(
        Failing("", "", body, body, args, init="self.layer = nn.Linear(4, 4)").source(repaired=False)
    )

    (found,) = fe.check(f"{path}:factory", target=target).diagnostics
    (assumed,) = re.findall(r"--assume (\S+)`", found.fix.message)
    program = fe.export(f"{path}:factory", assume=[assumed])

    assert assumed.partition("=")[2] == answer
    module, inputs = runpy.run_path(str(path))["factory"]()
    bound = fe.bind(program, module.state_dict()).module()
    torch.testing.assert_close(bound(*inputs), module(*inputs))


def test_no_answer_is_printed_if_the_example_inputs_give_both(tmp_path):
    body = "for row in x:\n    if row.sum() > 0:\n        x = x + row\nreturn x"
    path = tmp_path / "model.py"
    path.write_text(Failing("", "", body, body, "torch.tensor([[1.0], [-1.0]])").source(repaired=False))

    (found,) = fe.check(f"{path}:factory").diagnostics

    assert found.code == "FE201"
    assert "--assume" not in found.fix.message


@pytest.mark.parametrize("size", [4, 4096])
def test_weights_that_have_no_values_are_ordinary_numbers(size, tmp_path):
    body = (
        "y = self.layer(x) @ self.weight\nif not torch.isfinite(y).all():\n    y = y.clamp(-1, 1)\nreturn y"
    )
    init = f"self.layer = nn.Linear({size}, {size})\nself.weight = nn.Parameter(torch.empty({size}, {size}))"
    path = tmp_path / "model.py"
    path.write_text(Failing("", "", body, body, f"torch.randn(64, {size})", init=init).source(repaired=False))

    (found,) = fe.check(f"{path}:factory").diagnostics

    assert re.findall(r"--assume (\S+)`", found.fix.message) == ["model.py:17=False"]


@pytest.mark.parametrize(("inputs", "way"), [("-torch.ones(4)", "== 0"), ("torch.ones(4)", "> 0")])
def test_what_always_holds_of_a_size_is_that_of_the_example_inputs(inputs, way, tmp_path):
    body = "rows = x[x > 0]\nif rows.numel() == 0:\n    return x.sum()\nreturn rows.sum() + 1"
    path = tmp_path / "model.py"
    path.write_text(Failing("", "", body, body, inputs).source(repaired=False))

    (found,) = fe.check(f"{path}:factory").diagnostics

    assert found.fix.message.startswith(
        f"before this line, assert what always holds: `torch._check(rows.numel() {way})`"
    )


class Branches(nn.Module):
    def forward(self, x):
        if x.sum() > 3:
            return x + 1
        return x.masked_fill(x > 1, 0.0)


@pytest.mark.parametrize(("value", "answer"), [(1.0, "True"), (0.0, "False")])
def test_the_value_of_a_given_input_is_used(value, answer):
    (found,) = fe.check(Branches, (torch.full((4,), value),)).diagnostics

    assert re.findall(r"--assume \S+=(\w+)`", found.fix.message) == [answer]
