"""Questions of `forward` about constants whose value the code determines."""

from __future__ import annotations

import pytest
import torch
from torch import nn
from torch.nn import functional

from fakexport import bind, check, retarget
from fakexport.emulation.devices import emulate
from fakexport.emulation.fake import build
from fakexport.exporting.capture import capture

TARGETS = ["cpu", "H100"]


class Asking(nn.Module):
    def __init__(self, forward, has_unknown=False):
        super().__init__()
        self.linear = nn.Linear(4, 4)
        self.register_buffer("size", torch.tensor(3), persistent=False)
        self.register_buffer("step", torch.tensor(2), persistent=False)
        self.register_buffer("kept", torch.tensor(3))
        if has_unknown:
            self.register_buffer("derived", self.linear.weight.detach().sum().ceil(), persistent=False)
            self.register_buffer("drawn", torch.randint(0, 5, ()), persistent=False)
        self.limits = torch.tensor([1.0, 3.0])
        self.factor = nn.Parameter(torch.tensor(3.0))
        self._forward = forward

    def forward(self, x):
        return self._forward(self, self.linear(x))


def captured(forward, target="cpu", has_unknown=False, **options):
    def made():
        return Asking(forward, has_unknown), (torch.ones(2, 4),)

    with emulate(target) as devices:
        built = build(made, default_device=devices.default_device)
        return capture(built.module, built.args, **options)


def padding(m, y):
    """As encodec computes it."""
    frames = torch.ceil((y.shape[-1] - m.size + (m.size - m.step)) / m.step + 1).to(torch.int64) - 1
    wanted = frames * m.step + m.size - (m.size - m.step)
    extra = wanted - y.shape[-1]
    return functional.pad(y, (0, extra)) if extra > 0 else y[:, : int(m.step)]


ANSWERED = {
    "branch": (lambda m, y: y if m.limits.max() > 2 else -y, {"limits"}),
    "equal": (lambda m, y: -y if m.size == 3 else y, {"size"}),
    "int": (lambda m, y: y.reshape(int(m.size - m.step), -1), {"size", "step"}),
    "range": (lambda m, y: y * len(range(m.size)), {"size"}),
    "float": (lambda m, y: y * (2 if float(m.limits[1]) > 2 else 3), {"limits"}),
    "tolist": (lambda m, y: y * (2 if m.limits.tolist() == [1.0, 3.0] else 3), {"limits"}),
    "padding": (padding, {"size", "step"}),
    "count": (lambda m, y: y * len(range(m.limits[m.limits > 0].shape[0])), {"limits"}),
    "count of a selection": (
        lambda m, y: y * len(range((m.limits[m.limits > 0] > 0.5).nonzero().shape[0])),
        {"limits"},
    ),
    "list": (lambda m, y: y[:, torch.tensor([0, m.step])] if m.size == 3 else y, {"step", "size"}),
}


@pytest.mark.parametrize("target", TARGETS)
@pytest.mark.parametrize("name", ANSWERED)
def test_a_question_about_a_constant_is_answered_with_its_value(name, target):
    forward, read = ANSWERED[name]

    found = captured(forward, target)

    assert found.failure is None
    assert set(found.read_constants) == read
    real = Asking(forward)
    x = torch.arange(8.0).reshape(2, 4)
    program = retarget(found.program, "cpu")
    assert torch.equal(bind(program, real.state_dict()).module()(x), real(x))


def write_before(m, y):
    m.size.add_(1)
    return y if m.size > 3 else -y


def write_a_view_before(m, y):
    m.limits[:1].add_(5)
    return y if m.limits.max() > 3 else -y


def write_after(m, y):
    result = y if m.size == 3 else -y
    m.size.add_(1)
    return result


def assign_after(m, y):
    result = y if m.size == 3 else -y
    m.size = m.size + 1
    return result


def swap_before(m, y):
    m.size, m.step = m.step, m.size
    return y if m.size == 3 else -y


def write_copy_of_input(m, y):
    m.limits.copy_(y[0, :2])
    return y if m.limits.max() > 3 else -y


def counted_after_a_write(m, y):
    m.limits.add_(2)
    return y * len(range(m.limits[m.limits > 2].shape[0]))


def inside_of_cond(m, y):
    m.size.add_(1)
    return torch.cond(y.sum() > 0, lambda y, s: y * 2 if s > 3 else y, lambda y, s: y + 1, (y, m.size))


REFUSED = {
    "parameter": lambda m, y: y if m.factor > 2 else -y,
    "persistent": lambda m, y: y if m.kept == 3 else -y,
    "persistent and constant": lambda m, y: y if m.kept == m.size else -y,
    "made from a parameter": lambda m, y: y if m.derived > 0 else -y,
    "drawn": lambda m, y: y if m.drawn > 2 else -y,
    "drawn in forward": lambda m, y: y if torch.rand(()) + m.size > 3 else -y,
    "input": lambda m, y: y if y.sum() > 2 else -y,
    "input and constant": lambda m, y: y if y.sum() > m.size else -y,
    "sum of floats": lambda m, y: y if m.limits.exp().sum() > 2 else -y,
    "division by a number": lambda m, y: y if torch.ceil(m.limits / 3).sum() > 2 else -y,
    "written before": write_before,
    "view written before": write_a_view_before,
    "input written before": write_copy_of_input,
    "written after": write_after,
    "assigned after": assign_after,
    "swapped before": swap_before,
    "inside of cond": inside_of_cond,
    "count of an input": lambda m, y: y * len(range(y[y > 0].shape[0])),
    "count of what is persistent": lambda m, y: y * len(range(m.kept.nonzero().shape[0])),
    "counted after a write": counted_after_a_write,
    "list with what is persistent": lambda m, y: y[:, torch.tensor([0, m.kept])],
}


@pytest.mark.parametrize("name", REFUSED)
def test_what_is_not_known_is_not_answered(name):
    with torch.random.fork_rng(devices=[]):
        torch.seed()  # Whichever test ran before, no seed was chosen.
        found = captured(REFUSED[name], has_unknown=True)

    assert found.program is None
    assert found.failure is not None


def test_a_program_that_stock_exports_is_left_as_it_is():
    found = captured(lambda m, y: y * m.size.item())

    assert found.read_constants == ()
    assert torch.ops.aten.item.default in {node.target for node in found.program.graph.nodes}


def test_dynamic_sizes_are_kept():
    found = captured(
        lambda m, y: y if m.size == 3 else -y, dynamic={"x": {0: torch.export.Dim("batch", min=2)}}
    )

    assert found.read_constants == ("size",)
    assert found.program.range_constraints


def test_the_report_names_the_constants_that_were_read():
    forward = ANSWERED["int"][0]

    report = check(lambda: (Asking(forward), (torch.ones(2, 4),)), target=["cpu", "H100"])

    for verdict in report.verdicts:
        assert verdict.is_exportable
        assert [note for note in verdict.notes if "read the values of the 2 constants" in note]


@pytest.mark.parametrize(("name", "code"), [("persistent", "FE201"), ("written after", "FE201")])
def test_what_is_not_answered_is_reported_as_before(name, code):
    report = check(lambda: (Asking(REFUSED[name]), (torch.ones(2, 4),)), target=["cpu"])

    assert code in {found.code for found in report.diagnostics}


def test_what_is_answered_is_not_reported_next_to_another_problem():
    def forward(m, y):
        y = y if m.size == 3 else -y
        return y if y.sum() > 0 else -y

    report = check(lambda: (Asking(forward), (torch.ones(2, 4),)), target=["cpu"])

    found = [d for d in report.diagnostics if d.code == "FE201"]
    assert len(found) == 1
    assert "y.sum()" in str(found[0])
