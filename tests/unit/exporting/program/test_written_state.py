"""Which weights a program writes into, compared with what a run of it changes."""

from __future__ import annotations

import pytest
import torch
from torch import nn

import fakexport as fe
from fakexport.exporting.program.written_state import written_state


class Writes(nn.Module):
    """Writes into `direct`, `viewed` and, in subgraphs, `quiet`; only reads `read`."""

    def __init__(self):
        super().__init__()
        self.linear = nn.Linear(4, 4)
        for name in ("direct", "viewed", "quiet", "read"):
            self.register_buffer(name, torch.zeros(2, 4))

    def forward(self, x):
        self.direct.add_(1)
        self.viewed[1:].t().mul_(2).add_(1)
        with torch.no_grad():
            self.quiet.copy_(x)
            y = self.linear(x)
        return y + self.read + self.direct + self.viewed + self.quiet


class WritesConstant(nn.Module):
    def __init__(self):
        super().__init__()
        self.plain = [torch.zeros(4), torch.ones(4)]

    def forward(self, x):
        self.plain[0].add_(1)
        return x + self.plain[0] + self.plain[1]


CASES = {
    "in_place": (Writes, (2, 4)),
    "batch_norm_train": (lambda: nn.BatchNorm1d(4), (2, 4)),
    "batch_norm_eval": (lambda: nn.BatchNorm1d(4).eval(), (2, 4)),
    "instance_norm": (lambda: nn.InstanceNorm1d(4, track_running_stats=True), (2, 4, 3)),
    "embedding_max_norm": (lambda: nn.Embedding(5, 3, max_norm=0.1), None),
    "constant": (WritesConstant, (2, 4)),
    "linear": (lambda: nn.Linear(4, 4), (2, 4)),
}


QUICK = ("in_place", "batch_norm_train", "constant")
FORMS = [
    pytest.param(
        case, form, marks=() if form == "captured" or case in QUICK else pytest.mark.slow, id=f"{case}-{form}"
    )
    for case in CASES
    for form in ("captured", "loaded", "decomposed")
]


@pytest.mark.parametrize(("case", "form"), FORMS)
def test_the_written_tensors_are_those_that_a_run_changes(case, form, tmp_path):
    make, sizes = CASES[case]
    x = torch.tensor([1, 3]) if sizes is None else torch.ones(sizes)
    torch.manual_seed(0)
    module = make()
    program = torch.export.export(module, (x,))
    if (case, form) == ("constant", "decomposed"):
        pytest.skip("torch refuses to decompose a program that writes into a constant")
    if form == "loaded":
        fe.save(program, tmp_path / "program.pt2")
        program = fe.load(tmp_path / "program.pt2")
    if form == "decomposed":
        program = program.run_decompositions({})

    running = program.module()
    held = {**program.state_dict, **program.constants}
    before = {name: tensor.detach().clone() for name, tensor in held.items()}
    with torch.no_grad():
        running(x)
    changed = {name for name, tensor in held.items() if not torch.equal(tensor, before[name])}
    assert written_state(program) == changed
