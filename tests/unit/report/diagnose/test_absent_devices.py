"""A device that the target does not have is an error at the line that names it."""

from __future__ import annotations

import textwrap

import pytest
import torch
from torch import nn
from torch._subclasses.fake_tensor import FakeTensorMode

import fakexport as fe

MODEL = """
import torch
from torch import nn


class Model(nn.Module):
    def __init__(self):
        super().__init__()
        self.linear = nn.Linear(4, 4)
        {constructor}

    def forward(self, x):
        {forward}


def factory():
    return Model(), (torch.zeros(2, 4),)
"""
IN_FORWARD = [
    ("H100", "return self.linear(x) + torch.ones(4, device='cuda:3').to(x.device)"),
    ("cpu", "return self.linear(x) + torch.ones(4, device='cuda').to(x.device)"),
    ("M2-Ultra", "return self.linear(x).cuda().to(x.device)"),
    ("cpu", "return self.linear(x).cuda().cpu()"),
    ("H100", "return self.linear(x).cuda(1).to(x.device)"),
    ("H100", "return self.linear(x).to(1).to(x.device)"),
    ("H100", "return self.linear(x).to(torch.device('mps')).to(x.device)"),
    ("cpu", "return self.linear(x) + torch.tensor([1.0], device='cuda').to(x.device)"),
    ("H100", "return self.linear(x) + torch.tensor(1.0, device='cuda:3').to(x.device)"),
    ("H100", "return self.linear(x) + x.new_zeros(4, device='cuda:2').to(x.device)"),
    ("H100", "return self.linear(x) + torch.zeros(4, device=torch.device(2)).to(x.device)"),
    ("H100", "return self.linear(x).to('xpu').to(x.device)"),
    ("8xH100", "return self.linear(x).to('cuda:8').to(x.device)"),
    ("cpu", "return self.linear(x) if torch.Generator(device='cuda') else x"),
    ("H100", "torch.cuda.set_device(3); return self.linear(x)"),
    ("H100", "return self.linear(x) * torch.cuda.get_device_properties(3).major"),
    ("cpu", "return self.linear(x) * torch.cuda.get_device_capability()[0]"),
]
IN_CONSTRUCTOR = [
    ("cpu", "self.linear.to('cuda')"),
    ("M2-Ultra", "self.linear.cuda()"),
    ("H100", "self.shift = torch.ones(4, device='cuda:3')"),
    ("cpu", "self.generator = torch.Generator(device='cuda')"),
    ("H100", "self.generator = torch.Generator(device='mps')"),
]
HARMLESS = [
    ("cpu", "return self.linear(x.cuda()) if torch.cuda.is_available() else self.linear(x)"),
    ("H100", "return self.linear(x.to(torch.cuda.device_count() - 1))"),
    ("cpu", "return self.linear(x) if torch.device('cuda:3').type == 'cuda' else x"),
    ("H100", "return self.linear(x) + torch.zeros(4, device='meta').shape[0]"),
    ("4xH100", "return self.linear(x) + torch.ones(4, device='cuda:3').to(x.device)"),
]


def checked(folder, target, *, forward="return self.linear(x)", constructor="pass", strict=False):
    path = folder / "model.py"
    path.write_text(MODEL.format(forward=forward, constructor=constructor))
    return fe.check(f"{path}:factory", target=[target], strict=strict)


@pytest.mark.parametrize(
    ("target", "place", "line", "strict"),
    [
        *((target, {"forward": text}, 13, False) for target, text in IN_FORWARD),
        *((target, {"forward": text}, 13, True) for target, text in IN_FORWARD[:3]),
        *((target, {"constructor": text}, 10, False) for target, text in IN_CONSTRUCTOR),
    ],
)
def test_absent_device_is_reported_at_its_line(target, place, line, strict, tmp_path):
    report = checked(tmp_path, target, strict=strict, **place)

    (diagnostic,) = report.diagnostics
    assert (diagnostic.code, diagnostic.severity) == ("FE505", "error")
    assert diagnostic.primary.span.line == line
    assert not report.is_clean
    assert not report.verdicts[0].is_exportable


def test_generator_on_an_existing_device_has_its_own_fix(tmp_path):
    forward = "return x + torch.rand(4, device=x.device, generator=torch.Generator(device='cuda'))"
    report = checked(tmp_path, "H100", forward=forward)

    (found,) = report.diagnostics
    assert (found.code, found.primary.span.line) == ("FE202", 13)
    assert found.fix.message.startswith("remove `generator=`")


@pytest.mark.parametrize(("target", "forward"), HARMLESS)
def test_device_queries_and_existing_devices_are_not_reported(target, forward, tmp_path):
    report = checked(tmp_path, target, forward=forward)

    assert report.diagnostics == ()
    assert report.is_clean


@pytest.mark.parametrize("error", ["RuntimeError", "AssertionError", "torch.AcceleratorError"])
def test_model_can_catch_the_absent_device_error(error, tmp_path):
    forward = textwrap.dedent(f"""
        try:
            x = x.cuda()
        except {error}:
            x = x * 3
        return self.linear(x)
    """).strip()
    report = checked(tmp_path, "cpu", forward=textwrap.indent(forward, " " * 8).strip())

    assert report.diagnostics == ()
    assert report.verdicts[0].summary.devices == ("cpu",)
    assert "aten.mul.Tensor" in report.verdicts[0].summary.operators
    assert "cuda" not in str(report.verdicts[0].program.graph)  # stock torch keeps the move that raised


def test_target_in_the_fix_has_the_device(tmp_path):
    forward = "return self.linear(x) + torch.ones(4, device='cuda:3').to(x.device)"
    report = checked(tmp_path, "T4", forward=forward)
    target = report.diagnostics[0].fix.message.partition("--target ")[2].strip("`")

    repaired = checked(tmp_path, target, forward=forward)

    assert target == "4xT4"
    assert repaired.is_clean


def test_all_absent_devices_are_reported_in_one_check(tmp_path):
    forward = "a = torch.ones(4, device='cuda:3')\n        return self.linear(x) + a.to('xpu').to(x.device)"

    report = checked(tmp_path, "H100", forward=forward)

    assert [(d.code, d.primary.span.line) for d in report.diagnostics] == [("FE505", 13), ("FE505", 14)]


class Next(nn.Module):
    def forward(self, x):
        return x + 1


def test_input_on_a_device_outside_the_topology_raises():
    with FakeTensorMode():
        x = torch.zeros(2, device="cuda:3")

    with pytest.raises(RuntimeError, match="device cuda:3 does not exist on this target: it has"):
        fe.export(Next(), (x,), target="H100")


def test_fake_tensors_on_absent_devices_raise_under_emulation():
    with fe.emulate("H100"), FakeTensorMode():
        assert torch.ones(2, device="cuda").device == torch.device("cuda:0")
        with pytest.raises(torch.AcceleratorError, match="cuda:3 does not exist"):
            torch.ones(2, device="cuda:3")
        with pytest.raises(AssertionError, match="xpu does not exist"):
            torch.ones(2).to("xpu")
