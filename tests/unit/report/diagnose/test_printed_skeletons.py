"""A printed fake kernel, followed literally, is right or fails loudly: it never makes a wrong program."""

from __future__ import annotations

import pytest
import torch

import fakexport as fe
from tests.unit.report.diagnose.test_several_problems import checked

MODEL = """
import torch
from torch import nn


@torch.library.custom_op("skeletons::{name}", mutates_args=())
def operator({signature}:
    {body}


{kernel}


class Model(nn.Module):
    def forward(self, x):
        return operator(x{more})


def factory():
    return Model(), (torch.arange({count}.0).reshape({shape}),)
"""
# name -> signature, body, more arguments, shape of the input, whether the shapes leave no choice
OPERATORS = {
    "scaled": ("x: torch.Tensor) -> torch.Tensor", "return x * 2", "", (2, 3), True),
    "positive": ("x: torch.Tensor) -> torch.Tensor", "return x > 0", "", (2, 3), True),
    "both": (
        "x: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]",
        "return x + 1, x.long()",
        "",
        (2, 3),
        True,
    ),
    "gates": (
        "x: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]",
        "return x[:, :1].clone(), x.clone()",
        "",
        (3, 4),
        False,
    ),
    "summed": ("x: torch.Tensor) -> torch.Tensor", "return x.sum(-1)", "", (2, 3), False),
    "turned": ("x: torch.Tensor) -> torch.Tensor", "return x.mT.clone()", "", (3, 3), False),
    "column_major": ("x: torch.Tensor) -> torch.Tensor", "return x.mT.contiguous().mT", "", (2, 3), False),
    "first": ("x: torch.Tensor, n: int) -> torch.Tensor", "return x[:, :n].clone()", ", 3", (2, 3), False),
    "kept": ("x: torch.Tensor) -> torch.Tensor", "return x[x > 0]", "", (5,), False),
    "parts": ("x: torch.Tensor) -> list[torch.Tensor]", "return [x.clone()]", "", (2, 3), False),
}


def source(name, kernel=""):
    signature, body, more, shape, _ = OPERATORS[name]
    count = torch.Size(shape).numel()
    return MODEL.format(**locals())


@pytest.mark.parametrize("name", OPERATORS)
def test_printed_kernel_is_correct_or_raises(name, tmp_path):
    is_certain = OPERATORS[name][-1]

    (found,) = checked(tmp_path, source(name)).diagnostics
    kernel = found.fix.message.partition("\n")[2]
    report = checked(tmp_path, source(name, kernel))

    assert found.code == "FE401"
    assert ("NotImplementedError" in kernel) == (not is_certain)
    assert report.verdicts[0].is_exportable == is_certain
    assert report.is_clean == is_certain
    if not is_certain:
        assert any(
            f"return what skeletons::{name} returns" in note for d in report.diagnostics for note in d.notes
        )


def test_printed_kernel_of_a_torch_operator_raises():
    def factory():
        return Spectrum(), (torch.ones(3, 3),)

    class Spectrum(torch.nn.Module):
        def forward(self, x):
            return torch.ops.aten.batch_norm_stats(x, 1e-5)

    (found,) = fe.check(factory, target=["H100"]).diagnostics

    assert found.code == "FE401"
    assert "raise NotImplementedError" in found.fix.message
    assert "empty_like" not in found.fix.message
