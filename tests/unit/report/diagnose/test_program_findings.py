"""What is wrong with a program that was captured."""

from __future__ import annotations

import re

import pytest
import torch
from torch import nn

import fakexport as fe
from fakexport.exporting.program import ProgramFacts, keep_facts
from fakexport.report.diagnose.dynamic_dim_checks import diagnose_numbers


@torch.library.custom_op("findings::top", mutates_args=())
def top(x: torch.Tensor) -> torch.Tensor:
    return x.amax(-1)


@top.register_fake
def _(x):
    return x.new_empty(x.shape[:-1])


@torch.library.custom_op("findings::transposed", mutates_args=())
def transposed(x: torch.Tensor, scale: float, dim: int | None = None) -> torch.Tensor:
    return (x * scale).t()


@transposed.register_fake
def _(x, scale, dim=None):
    return x.new_empty(x.shape[1], x.shape[0])


@torch.library.custom_op("findings::only_cuda", mutates_args=(), device_types="cuda")
def only_cuda(x: torch.Tensor) -> torch.Tensor:
    return x.clone()


@only_cuda.register_fake
def _(x):
    return torch.empty_like(x)


torch.library.define("findings::native", "(Tensor x) -> Tensor")
torch.library.impl("findings::native", "cpu", lambda x: x.clone())
torch.library.register_fake("findings::native", torch.empty_like)


class Calls(nn.Module):
    def __init__(self, function):
        super().__init__()
        self.function = function

    def forward(self, x):
        return self.function(x)


def checked(function, *args, **options):
    return fe.check(lambda: (Calls(function), args), **options)


@pytest.mark.parametrize("target", ["cpu", "H100"])
def test_fake_kernel_with_wrong_strides_is_reported(target):
    (diagnostic,) = checked(lambda x: transposed(x, 2.0), torch.ones(2, 3), target=[target]).diagnostics

    assert diagnostic.code == "FE402"
    assert "Stride" in diagnostic.notes[0]
    assert diagnostic.primary.span.path == __file__


def test_matching_fake_kernel_is_not_reported():
    report = checked(top, torch.ones(4, 3), dynamic_shapes=["x.0=2..64"])

    assert report.diagnostics == ()
    assert report.verdicts[0].notes == ()


@pytest.mark.parametrize(
    ("function", "x", "reason"),
    [
        (only_cuda, torch.ones(2), "on synthetic data, the operator raised"),
        (
            torch.ops.findings.native,
            torch.ones(2),
            "operators that are not defined with `torch.library.custom_op`",
        ),
        (lambda x: top(x[x > 0][None]), torch.ones(8), "the size of an input depends on data"),
        (top, torch.empty(17, 2**20), "its inputs exceed 64 MiB"),
    ],
    ids=["another-device", "native", "unknown-size", "large"],
)
def test_an_operator_that_cannot_be_compared_is_named(function, x, reason):
    report = checked(function, x)

    assert report.is_clean
    (note,) = report.verdicts[0].notes
    assert note.startswith("the fake kernel of findings::")
    assert reason in note


def declared(function, *dynamic, x=6):
    return checked(function, torch.ones(x, 2), dynamic_shapes=list(dynamic))


def test_narrowed_range_is_reported_with_a_rejected_size():
    (diagnostic,) = declared(lambda x: x * 2 if x.shape[0] < 10 else x + 1, "x.0=2..64").diagnostics

    assert (diagnostic.code, diagnostic.primary.span.path) == ("FE302", __file__)
    assert diagnostic.notes == ("x.0 was declared as 2..64, but the program rejects size 10",)


def test_first_rejected_size_of_a_noncontiguous_range_is_reported():
    found = declared(lambda x: x[: round(x.shape[0] / 2)] + 1, "x.0=2..64").diagnostics

    (diagnostic,) = [each for each in found if each.code != "FE406"]  # No archive can have this `round`.
    assert diagnostic.notes == ("x.0 was declared as 2..64, but the program rejects size 2",)


@pytest.mark.parametrize("dim", ["x.0=2..9", "x.0=..9", "x.0"])
def test_range_within_the_guards_is_not_reported(dim):
    assert declared(lambda x: x * 2 if x.shape[0] < 10 else x + 1, dim).diagnostics == ()


def test_program_rejects_the_reported_size():
    class Cut(nn.Module):
        def forward(self, x):
            return x if x.shape[0] < 10 else x + 1

    program = fe.export(Cut(), (torch.ones(6, 2),), dynamic_shapes=["x.0=2..64"])

    program.module()(torch.ones(9, 2))
    with pytest.raises((AssertionError, RuntimeError)):
        program.module()(torch.ones(10, 2))


@pytest.mark.parametrize(
    ("dim", "sizes"), [("x.0=0..64", "0 and 1"), ("x.0=1..", "1"), ("x.0=2..64", None), ("x.0=..64", None)]
)
def test_unverified_sizes_zero_and_one_are_noted(dim, sizes):
    report = checked(torch.relu, torch.zeros(4, 8), dynamic_shapes=[dim])

    told = [note for note in report.verdicts[0].notes if "not verified" in note]
    assert report.diagnostics == ()
    assert [re.findall(r"for sizes? ([01 and]+)$", note) for note in told] == [[sizes]] * bool(sizes)


def test_guard_rejects_size_one_if_it_takes_a_different_branch():
    """torch records no guard there: a symbol stands for sizes of 2 or more."""
    model = Calls(lambda x: x + 1 if x.shape[0] == 1 else x)
    program = fe.export(lambda: (model, (torch.zeros(4),)), dynamic_shapes=["x.0=1..64"])

    assert torch.equal(fe.bind(program, {}).module()(torch.zeros(3)), model(torch.zeros(3)))
    with pytest.raises(AssertionError, match=r"Guard failed: x\.size\(\)\[0\] != 1"):
        fe.bind(program, {}).module()(torch.zeros(1))


def test_dimensions_with_one_range_may_be_equal():
    class Sum(nn.Module):
        def forward(self, x, y):
            return x + y

    model = lambda: (Sum(), (torch.ones(4, 2), torch.ones(4, 2)))  # noqa: E731

    assert fe.check(model, dynamic_shapes=["x.0=2..64", "y.0=2..64"]).diagnostics == ()


def test_bool_and_none_inputs_are_not_reported_as_fixed_numbers():
    class Flagged(nn.Module):
        def forward(self, x, is_doubled, mask, scale):
            return x * 2 * scale if is_doubled and mask is None else x

    report = fe.check(lambda: (Flagged(), (torch.ones(2), True, None, 3)))

    (diagnostic,) = report.diagnostics
    assert diagnostic.notes == ("scale is fixed to 3 in the program, which rejects other values",)
    assert report.is_clean


def test_an_object_of_a_c_plus_plus_class_gets_a_skeleton():
    class Profiled(nn.Module):
        def __init__(self):
            super().__init__()
            self.profile = torch.classes.profiling._ScriptProfile()

        def forward(self, x):
            return x + 1

    (diagnostic,) = fe.check(lambda: (nn.Sequential(Profiled()), (torch.ones(2),))).diagnostics

    assert diagnostic.code == "FE404"
    assert '@torch._library.register_fake_class("profiling::_ScriptProfile")' in diagnostic.fix.message
    assert "def _dump_stats(self):" in diagnostic.fix.message


def test_an_operator_gets_the_skeleton_of_its_schema():
    torch.library.define("findings::mix", "(Tensor x, int[] sizes, float? scale=None) -> (Tensor, Tensor[])")
    torch.library.impl("findings::mix", "cpu", lambda x, sizes, scale=None: (x, [x]))

    (diagnostic,) = checked(lambda x: torch.ops.findings.mix(x, [1])[0], torch.ones(2)).diagnostics

    assert diagnostic.fix.message.splitlines() == [
        "register a fake kernel, and complete its return value:",
        '@torch.library.register_fake("findings::mix")',
        "def _(x, sizes, scale):",
        '    raise NotImplementedError("return what findings::mix returns, such as x.new_empty(sizes), '
        '[x.new_empty(sizes)]")',
        "or in C++:",
        "std::tuple<at::Tensor, std::vector<at::Tensor>> mix_meta(const at::Tensor& x, at::IntArrayRef "
        "sizes, std::optional<double> scale) { TORCH_CHECK_NOT_IMPLEMENTED(false, "
        '"return what findings::mix returns: at::empty(...)"); }',
        'TORCH_LIBRARY_IMPL(findings, Meta, m) { m.impl("mix", &mix_meta); }',
    ]


def test_derived_numbers_of_one_input_are_one_finding():
    class Cropped(nn.Module):
        def forward(self, x, sizes):
            return x[: sizes[0][0], : sizes[0][1]] * sizes[1][0]

    program = torch.export.export(Cropped(), (torch.randn(4, 4), [[2, 3], [4, 5]]))
    own = list(diagnose_numbers(program))
    keep_facts(program, ProgramFacts(source="hf:llava_next"))

    (found,) = diagnose_numbers(program)

    assert len(own) == 4
    assert found.notes == ("sizes is fixed to 2, 3, 4, 5 in the program, which rejects other values",)
    assert "one program for each value of sizes" in found.fix.message
