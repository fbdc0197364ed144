"""What is printed for a range that a model does not take works: each is tried."""

import pytest
import torch
from torch import nn

import fakexport as fe
from fakexport.checking import Wanted, report_on
from fakexport.exporting.capture import Request
from tests.unit.report.diagnose.repair_corpus import Failing


def tried(tmp_path, body, args, dynamic, signature="x"):
    path = tmp_path / "model.py"
    path.write_text(Failing("", "", body, body, args, signature).source(repaired=False))
    call = Request(source=f"{path}:factory", dynamic_shapes=dynamic)
    (found,) = report_on(call, wanted=Wanted(tried_fixes=True)).diagnostics
    return found


@pytest.mark.parametrize(
    ("body", "args", "dynamic", "fix"),
    [
        pytest.param(
            "return x.view(5, -1)", "torch.zeros(10, 4)", "x.0=2..64", "`--dynamic auto`", id="multiples"
        ),
        pytest.param(
            "return x[..., : int(x.shape[-2] / 2), :]",
            "torch.zeros(2, 8, 4)",
            "x.1=4..64",
            "`x.shape[-2] // 2` instead of `int(x.shape[-2] / 2)`",
            id="division",
        ),
        pytest.param(
            "return F.avg_pool1d(x, 4) + torch.zeros(2, 3, x.shape[2] // 4)",
            "torch.zeros(2, 3, 4)",
            "x.2=4..64",
            "--input 'x=float32[2,3,8]' --dynamic x.2=8..64",
            id="derived size of 1",
        ),
        pytest.param(
            "return x * 2 if x.shape[0] > 5 else x", "torch.zeros(8)", "x.0=2..64", "x.0=6..64", id="range"
        ),
    ],
)
def test_the_fix_of_a_range_is_verified(body, args, dynamic, fix, tmp_path):
    found = tried(tmp_path, body, args, [dynamic])

    assert (found.code, fix in found.fix.message, found.fix.is_verified) == ("FE302", True, True)


def test_sizes_that_are_related_and_may_be_equal_get_one_name(tmp_path):
    body = "return x.sum(1) + y.sum(1) if x.shape[1] <= y.shape[1] else x.sum(1)"
    args = "torch.zeros(3, 6), torch.zeros(3, 6)"
    found = tried(tmp_path, body, args, ["x.1=2..64", "y.1=4..32"], "x, y")

    assert (found.code, found.fix.is_verified) == ("FE302", True)
    assert found.fix.message == (
        "if x.1 and y.1 are always equal, give them one name: `--dynamic x.1=size=4..32 --dynamic y.1=size`"
    )


@pytest.mark.parametrize("dynamic", [["x.2=4..32", "y.3=4..32"], ["x.2=size=4..32", "y.3=size"]])
def test_a_mask_of_the_same_size_is_no_relation(dynamic):
    """A mask of one column would be broadcast, so one of the guards is not a plain equality."""

    class Attention(nn.Module):
        def forward(self, x, y):
            return nn.functional.scaled_dot_product_attention(x, x, x, y)

    inputs = torch.zeros(1, 2, 6, 8), torch.zeros(1, 1, 1, 6)
    assert fe.check(Attention, inputs, target="H100", dynamic_shapes=dynamic).is_clean


def test_a_new_name_is_not_one_that_another_dimension_has(tmp_path):
    body = "return x.sum(1) + y.sum(1) + z.sum(1) if x.shape[1] <= y.shape[1] else x.sum(1)"
    args = "torch.zeros(3, 6), torch.zeros(3, 6), torch.zeros(3, 9)"
    found = tried(tmp_path, body, args, ["x.1=2..64", "y.1=2..64", "z.1=size=8..9"], "x, y, z")

    assert found.fix.is_verified
    assert found.fix.message.endswith("`--dynamic x.1=size0=2..64 --dynamic y.1=size0`")


def test_a_size_that_two_dimensions_with_one_name_cannot_have_is_an_error(tmp_path):
    body = "return x.sum(1) + y.sum(1) if x.shape[1] + y.shape[1] < 100 else x.sum(1)"
    args = "torch.zeros(3, 6), torch.zeros(3, 6)"
    found = tried(tmp_path, body, args, ["x.1=n=2..64", "y.1=n"], "x, y")

    assert found.code == "FE302"
    assert found.notes == (
        "x.1 and y.1 were declared as one size, but the program does not accept x.1=50 and y.1=50",
    )


def test_a_smaller_range_of_a_name_is_declared_for_each_dimension_with_this_name(tmp_path):
    body = "return x * 2 + y if x.shape[0] > 5 else x"
    found = tried(tmp_path, body, "torch.zeros(8), torch.zeros(8)", ["y.0=n=2..64", "x.0=n"], "x, y")

    assert (found.code, found.fix.is_verified) == ("FE302", True)
    assert found.fix.message.startswith(
        "declare a smaller range for x.0: `--dynamic y.0=n=6..64 --dynamic x.0=n`; or"
    )
    assert found.fix.message.endswith("`--dynamic 'y.0=n=2..5|6..64' --dynamic x.0=n`")


def test_a_line_that_raises_for_other_sizes_is_not_divided_into_ranges(tmp_path):
    found = tried(tmp_path, "return x[5]", "torch.zeros(8, 3)", ["x.0=2..12"])

    assert (found.code, found.fix.is_verified) == ("FE302", True)
    assert found.fix.message == "declare a smaller range for x.0: `--dynamic x.0=6..12`"


def test_sizes_with_one_range_that_must_be_equal_are_noted_unless_they_have_one_name():
    class Sum(nn.Module):
        def forward(self, x, y):
            return x + y

    def notes(*dynamic):
        report = fe.check(Sum, (torch.zeros(4, 3), torch.zeros(4, 3)), dynamic_shapes=list(dynamic))
        assert report.is_clean
        return report.verdicts[0].notes

    (note,) = notes("x.0=2..8", "y.0=2..8")
    assert note.startswith("the program accepts only inputs with x.0 == y.0, because of ")
    assert notes("x.0=n=2..8", "y.0=n") == ()


class Chooses(nn.Module):
    def forward(self, x, y):
        if x.shape[1] > y.shape[1]:
            return x.sum(1) - y.sum(1)
        return x.sum(1) + y.sum(1)


EXAMPLE = (torch.ones(2, 8), torch.ones(2, 5))


def test_a_relation_between_declared_sizes_is_an_error():
    (found,) = fe.check(Chooses, EXAMPLE, dynamic_shapes=["x.1=2..64", "y.1=2..64"]).diagnostics

    assert found.code == "FE302"
    assert found.notes == (
        "x.1 and y.1 were declared as independent, but the program does not accept x.1=2 and y.1=2",
    )
    assert found.primary.span.line == Chooses.forward.__code__.co_firstlineno + 1


def test_a_relation_between_sizes_that_vary_is_noted_and_checked():
    report = fe.check(Chooses, EXAMPLE, dynamic_shapes="auto")
    program = fe.export(Chooses, EXAMPLE, dynamic_shapes="auto")

    assert report.is_clean
    assert "the program accepts only inputs with x.1 > y.1" in report.verdicts[0].notes[0]
    with pytest.raises(AssertionError, match="Guard failed"):
        program.module()(*reversed(EXAMPLE))


class Greater(nn.Module):
    def forward(self, x, y):
        n = max(x.shape[1], y.shape[1])
        return nn.functional.pad(x, (0, n - x.shape[1])) + nn.functional.pad(y, (0, n - y.shape[1]))


@pytest.mark.parametrize("dynamic", [["x.1=2..64", "y.1=2..64"], "auto"])
def test_the_greater_of_two_sizes_is_no_relation(dynamic):
    report = fe.check(Greater, EXAMPLE, dynamic_shapes=dynamic)
    program = fe.export(Greater, EXAMPLE, dynamic_shapes=dynamic)

    assert report.is_clean
    for inputs in (EXAMPLE, EXAMPLE[::-1]):
        assert torch.equal(program.module()(*inputs), Greater()(*inputs))
