"""Loops over the rows of a mask that data set, exported as loops over every row."""

from __future__ import annotations

import runpy
import textwrap

import pytest
import torch
from torch.fx.experimental.symbolic_shapes import GuardOnDataDependentSymNode

import fakexport as fe
from tests.unit.exporting.capture.answered_models import exported
from tests.unit.exporting.capture.memo_models import exported_both_ways

HEAD = """import torch
import torch.nn.functional as F
from torch import nn


class Experts(nn.Module):
    def __init__(self):
        super().__init__()
        self.gate = nn.Linear(4, 3)
        self.up = nn.Parameter(torch.randn(3, 8, 4))
        self.down = nn.Parameter(torch.randn(3, 4, 8))
        self.layers = nn.ModuleDict({{f"expert_{{i}}": nn.Linear(4, 4) for i in range(3)}})

    def forward(self, x):
        scores, chosen = self.gate(x).softmax(-1).topk({chosen})
        out, seen = torch.zeros_like(x), 0
{body}
        return out + seen


class Model(nn.Module):
    def __init__(self):
        super().__init__()
        self.blocks = nn.ModuleList(Experts() for _ in range(3))

    def forward(self, x):
        for block in self.blocks:
            x = x + block(x)
        return x


def factory():
    return Model(), (torch.ones(2, 4),)
"""


def lines(*text):
    return "\n".join(text)


# As in the models of transformers.
MIXTRAL = lines(
    "with torch.no_grad():",
    "    mask = F.one_hot(chosen, num_classes=3)",
    "    mask = mask.permute(2, 1, 0)",
    "    hit = torch.greater(mask.sum(dim=(-1, -2)), 0).nonzero()",
    "for expert_idx in hit:",
    "    expert_idx = expert_idx[0]",
    "    if expert_idx == 3:",
    "        continue",
    "    top_k_pos, token_idx = torch.where(mask[expert_idx])",
    "    state = x[token_idx]",
    "    state = F.linear(F.silu(F.linear(state, self.up[expert_idx])), self.down[expert_idx])",
    "    state = state * scores[token_idx, top_k_pos, None]",
    "    out.index_add_(0, token_idx, state.to(out.dtype))",
)
QWEN = lines(
    "mask = F.one_hot(chosen, num_classes=3).permute(2, 1, 0)",
    "hit = torch.greater(mask.sum(dim=(-1, -2)), 0).nonzero()",
    "for expert_idx in hit:",
    "    idx, top_x = torch.where(mask[expert_idx].squeeze(0))",
    "    state = x[None, top_x].reshape(-1, 4)",
    '    state = self.layers[f"expert_{expert_idx[0]}"](state) * scores[top_x, idx, None]',
    "    out.index_add_(0, top_x, state)",
)
LONGCAT = lines(
    "mask = F.one_hot(chosen, num_classes=3).permute(2, 1, 0)",
    "hit = (mask.sum((1, 2)) > 0).nonzero(as_tuple=False)",
    "for row in hit:",
    "    number = int(row.item())",
    "    idx, top_x = torch.where(mask[number])",
    "    if top_x.numel() == 0:",
    "        continue",
    "    if number >= 2:",
    "        state = x[top_x]",
    "    else:",
    "        state = F.linear(x[top_x], self.up[number]) @ self.up[number]",
    "    out[top_x] += state * scores[top_x, idx, None]",
)


def written(path, body, chosen=2):
    path.write_text(HEAD.format(body=textwrap.indent(body, " " * 8), chosen=chosen))
    return path


@pytest.mark.parametrize(
    ("body", "chosen"), [(MIXTRAL, 2), (QWEN, 1), (LONGCAT, 2)], ids=["mixtral", "qwen", "longcat"]
)
def test_every_expert_is_visited_and_the_values_are_those_of_eager_mode(body, chosen, tmp_path):
    path = written(tmp_path / "model.py", body, chosen)
    torch.manual_seed(0)
    model = runpy.run_path(str(path))["factory"]()[0]

    exported_program = exported_both_ways(f"{path}:factory", dynamic_shapes=["x.0=1..64"])

    program = fe.bind(exported_program, model.state_dict()).module()
    for size in (1, 2, 3, 12):
        for seed in range(4):
            x = torch.randn(size, 4, generator=torch.Generator().manual_seed(seed))
            with torch.no_grad():
                assert torch.equal(program(x), model(x))


# What else a loop does, for which the rows that are not set count, or that cannot be told from the source.
OTHERS = {
    "a count": MIXTRAL + "\n    seen = seen + 1",
    "a number that is read after the loop": MIXTRAL + "\nseen = expert_idx",
    "a write of another row": MIXTRAL + "\n    out[0] = 1.0",
    "the row itself": QWEN.replace("expert_idx[0]", "expert_idx.sum()"),
    "a count that may be negative": MIXTRAL.replace("mask.permute(2, 1, 0)", "(mask - 1).permute(2, 1, 0)"),
    "another mask": MIXTRAL.replace("torch.where(mask[", "torch.where((mask == 0)["),
    "a mask that is changed": QWEN.replace("for expert", "mask.zero_()\nfor expert"),
    "a threshold": MIXTRAL.replace("(-1, -2)), 0)", "(-1, -2)), 1)"),
    "other dimensions": MIXTRAL.replace("dim=(-1, -2)", "dim=(0, 1)"),
}


@pytest.mark.parametrize("body", OTHERS.values(), ids=list(OTHERS))
def test_a_loop_that_does_more_is_still_a_question(body, tmp_path):
    with pytest.raises(GuardOnDataDependentSymNode):
        exported(written(tmp_path / "model.py", body))


def test_a_mask_of_one_row_too_many_is_reported_as_without_it(tmp_path):
    path = written(
        tmp_path / "model.py", MIXTRAL.replace("num_classes=3", "num_classes=4").replace("== 3", "== 5")
    )

    report = fe.check(f"{path}:factory")

    (first, *_) = report.diagnostics
    assert first.code == "FE301"
    assert "for expert_idx in hit" in path.read_text().splitlines()[first.labels[0].span.line - 1]
    assert not any("out of bounds" in note for each in report.diagnostics for note in each.notes)


def test_what_fails_elsewhere_is_reported_alone(tmp_path):
    path = written(tmp_path / "model.py", MIXTRAL + "\nif x.sum() > 0:\n    out = out + 1")

    codes = [each.code for each in fe.check(f"{path}:factory").diagnostics]

    assert codes == ["FE201"]
