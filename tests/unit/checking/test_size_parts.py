"""Several ranges of a size: which programs are exported, and what is refused."""

from __future__ import annotations

import textwrap

import pytest
import torch
from torch import nn

import fakexport as fe
from fakexport.checking import Wanted, report_on
from fakexport.exporting.capture import Request

HEADER = "import torch\nfrom torch import nn\n"


class Branches(nn.Module):
    """Takes another branch above 8 rows."""

    def forward(self, x):
        return x.relu() if x.shape[0] > 8 else x * 2


class Even(nn.Module):
    def forward(self, x):
        return x.view(-1, 2, x.shape[1]).sum(1) if x.shape[0] % 2 == 0 else x


class TwoInputs(nn.Module):
    """Nothing requires that the mask has as many rows as x."""

    def forward(self, x, mask):
        return x * mask


class Equal(nn.Module):
    def forward(self, x, y):
        return x + y


def report_of(module, args, dynamic, **options):
    request = Request(source=lambda: (module, args), dynamic_shapes=dynamic, **options)
    return report_on(request, wanted=Wanted(programs=True))


def bundle_of(report):
    return fe.Bundle({f"range{i}": verdict.program for i, verdict in enumerate(report.verdicts)})


def rows(report):
    return [verdict.target.sizes for verdict in report.verdicts]


def check_every_size(module, bundle, sizes, *, others=()):
    for size in sizes:
        x = torch.arange(size * 3.0).view(size, 3) - 20
        given = dict(zip(("x", "mask", "y"), (x, *others), strict=False))
        assert torch.equal(fe.run(bundle, given)["output"], module(x)), size


def test_a_batch_of_one_works_next_to_larger_ones():
    report = report_of(nn.Flatten(), (torch.zeros(4, 3),), ["input.0=1|2..32"])

    assert rows(report) == ["input.0=1", "input.0=2..32"]
    assert report.is_clean
    assert [verdict.target.name for verdict in report.verdicts] == ["cpu input.0=1", "cpu input.0=2..32"]
    bundle = bundle_of(report)
    for size in range(1, 33):
        x = torch.randn(size, 3)
        assert torch.equal(fe.run(bundle, x)["output"], x)
    for size in (0, 33):
        with pytest.raises(fe.InputMismatchError, match=rf"size {size} in dimension 0, but .* 1 and 2..32"):
            fe.run(bundle, torch.zeros(size, 3))


def test_each_branch_is_a_program():
    report = report_of(Branches(), (torch.zeros(4, 3),), ["x.0=2..8|9..20"])

    assert rows(report) == ["x.0=2..8", "x.0=9..20"]
    check_every_size(Branches(), bundle_of(report), range(2, 21))


def test_the_model_decides_which_ranges_share_a_program():
    report = report_of(Branches(), (torch.zeros(4, 3),), ["x.0=1..4|5..8|9..12|13.."])
    shared = report_of(nn.ReLU(), (torch.zeros(4, 3),), ["input.0=1..4|5..8|9.."])

    assert rows(report) == ["x.0=1", "x.0=2..4", "x.0=5..8", "x.0=9..12", "x.0=13.."]
    check_every_size(Branches(), bundle_of(report), (*range(1, 40), 5000))
    assert rows(shared) == ["input.0=1", "input.0=2.."]


def test_a_range_across_a_branch_is_refused_at_the_line():
    report = report_of(Branches(), (torch.zeros(4, 3),), ["x.0=1|2..20"])

    assert [verdict.is_exportable for verdict in report.verdicts] == [True, False]
    (found,) = (each for each in report.diagnostics if each.severity == "error")
    assert found.code == "FE302"
    assert found.targets == ("cpu x.0=2..20",)
    assert found.labels[0].span.path.endswith("test_size_parts.py")
    assert report.verdicts[1].saved is None
    assert found.fix.message.endswith("`--dynamic 'x.0=2..8|9..20'`. Add the other ranges that you declared")


def test_an_unbounded_range_across_a_branch_names_the_ranges():
    report = report_of(Branches(), (torch.zeros(4, 3),), ["x.0=1|2.."])

    (found,) = (each for each in report.diagnostics if each.severity == "error")
    assert found.code == "FE302"
    assert "`--dynamic 'x.0=2..8|9..'`" in found.fix.message


def test_a_size_inside_a_range_that_the_program_refuses_is_found():
    report = report_of(Even(), (torch.zeros(4, 3),), ["x.0=1|2..20"])

    assert not report.is_clean
    assert not report.verdicts[1].is_exportable


def test_single_sizes_are_static_programs():
    report = report_of(Even(), (torch.zeros(6, 3),), ["x.0=4|5|16"])

    assert rows(report) == ["x.0=4", "x.0=5", "x.0=16"]
    check_every_size(Even(), bundle_of(report), (4, 5, 16))
    with pytest.raises(fe.InputMismatchError, match=r"size 6 .* 4 and 5 and 16"):
        fe.run(bundle_of(report), torch.zeros(6, 3))


class Unrolled(nn.Module):
    """Needs a static size: each row is a step of a Python loop."""

    def forward(self, x, mask):
        state = x.new_zeros(x.shape[1])
        for row in range(x.shape[0]):
            state = (state + x[row] * mask[row]).tanh()
        return state


def test_single_sizes_of_a_model_that_needs_static_sizes():
    example = (torch.zeros(4, 3), torch.zeros(4, 1))
    report = report_of(Unrolled(), example, ["x.0=1|2|4|6"])

    assert rows(report) == ["x.0=1", "x.0=2", "x.0=4", "x.0=6"]
    for size in (1, 2, 4, 6):
        x, mask = torch.randn(size, 3), torch.randn(size, 1)
        assert torch.equal(fe.run(bundle_of(report), x, mask)["output"], Unrolled()(x, mask))


def test_a_model_that_needs_static_sizes_has_no_range():
    report = report_of(Unrolled(), (torch.zeros(4, 3), torch.zeros(4, 1)), ["x.0=1|2..4"])

    assert {each.code for each in report.diagnostics} == {"FE302"}


def test_sizes_zero_and_one_have_their_own_programs():
    report = report_of(nn.ReLU(), (torch.zeros(6, 3),), ["input.0=0..3|4..9"])

    assert rows(report) == ["input.0=0", "input.0=1", "input.0=2..9"]
    bundle = bundle_of(report)
    for size in range(10):
        assert fe.run(bundle, torch.ones(size, 3))["output"].shape == (size, 3)


def test_sizes_that_are_equal_in_the_example_change_together():
    report = report_of(TwoInputs(), (torch.zeros(4, 3), torch.zeros(4, 1)), ["x.0=1|2..9"])

    bundle = bundle_of(report)
    for size in range(1, 10):
        x, mask = torch.randn(size, 3), torch.randn(size, 1)
        assert torch.equal(fe.run(bundle, {"x": x, "mask": mask})["output"], x * mask)


def test_a_name_says_which_sizes_change_together():
    other = (torch.zeros(4, 3), torch.zeros(4, 3))
    report = report_of(TwoInputs(), other, ["x.0=rows=1|2..9", "mask.0=rows"])

    assert rows(report) == ["x.0=1", "x.0=2..9"]
    bundle = bundle_of(report)
    for size in range(1, 10):
        x, mask = torch.randn(size, 3), torch.randn(size, 3)
        assert torch.equal(fe.run(bundle, {"x": x, "mask": mask})["output"], x * mask)
    with pytest.raises(fe.InputMismatchError):
        fe.run(bundle, {"x": torch.zeros(4, 3), "mask": torch.zeros(5, 3)})


def test_two_dimensions_make_a_program_for_each_pair():
    report = report_of(nn.ReLU(), (torch.zeros(4, 3),), ["input.0=1|2..9", "input.1=1|2..5"])

    assert len(report.verdicts) == 4
    bundle = bundle_of(report)
    for batch in range(1, 10):
        for width in range(1, 6):
            assert fe.run(bundle, torch.ones(batch, width))["output"].shape == (batch, width)


def test_dimensions_that_are_always_equal_need_one_name():
    with pytest.raises(ValueError, match=r"x.0 and y.0 always change together: give them one name"):
        report_of(Equal(), (torch.zeros(4, 3), torch.zeros(4, 3)), ["x.0=1|2..9", "y.0=1|2..9"])


def test_an_example_of_one_row_is_refused():
    with pytest.raises(ValueError, match=r"the example size 1 is not in 2\.\.: use larger example inputs"):
        report_of(nn.ReLU(), (torch.zeros(1, 3),), ["input.0=1|2..9"])


def test_examples_outside_of_all_ranges_are_changed():
    report = report_of(Branches(), (torch.zeros(4, 3),), ["x.0=16|17..20"])

    assert rows(report) == ["x.0=16", "x.0=17..20"]
    check_every_size(Branches(), bundle_of(report), range(16, 21))


def test_stages_and_ranges_are_not_combined():
    with pytest.raises(ValueError, match=r"pipeline stages \(pp=\) cannot be combined with several ranges"):
        report_of(nn.ReLU(), (torch.zeros(4, 3),), ["input.0=1|2..9"], parallel="pp=2")


def test_export_returns_one_program():
    with pytest.raises(ValueError, match="several ranges of a size need several programs"):
        fe.export(nn.ReLU(), (torch.zeros(4, 3),), dynamic_shapes=["input.0=1|2..9"])


def test_auto_offers_to_divide_the_sizes(tmp_path):
    """What it prints exports everything when it is pasted."""
    (tmp_path / "model.py").write_text(
        HEADER
        + textwrap.dedent(
            """
            class Model(nn.Module):
                def forward(self, x):
                    return x.relu() if x.shape[0] > 8 else x * 2

            def build():
                return Model(), (torch.zeros(4, 3),)
            """
        )
    )
    source = f"{tmp_path / 'model.py'}:build"

    (note,) = fe.check(source, dynamic_shapes="auto").verdicts[0].notes
    assert note.startswith("the program does not accept all sizes of x.0, because of model.py:6: ")
    offered = note.partition("--dynamic '")[2].partition("'")[0]
    again = report_on(Request(source=source, dynamic_shapes=["auto", offered]), wanted=Wanted(programs=True))

    assert offered == "x.0=2..8|9.."
    assert again.is_clean
    assert [verdict.notes for verdict in again.verdicts] == [(), ()]


def test_auto_offers_other_sizes_than_a_batch_of_one():
    report = fe.check(lambda: (nn.ReLU(), (torch.zeros(1, 3),)), dynamic_shapes="auto")

    assert report.verdicts[0].notes == (
        "input.0 is fixed to 1, as in the example inputs: `--input 'input=float32[2,3]' --dynamic auto "
        "--dynamic 'input.0=1|2..'` also exports a program for other sizes",
    )


def test_sizes_that_are_already_divided_are_not_offered_again():
    report = report_of(nn.ReLU(), (torch.zeros(4, 3),), ["auto", "input.0=1|2..9"])
    fixed = fe.check(lambda: (nn.ReLU(), (torch.zeros(1, 3),)), dynamic_shapes=["auto", "input.0=1"])

    assert [verdict.notes for verdict in (*report.verdicts, *fixed.verdicts)] == [(), (), ()]


class Counter(nn.Module):
    def __init__(self):
        super().__init__()
        self.register_buffer("rows", torch.zeros(()))

    def forward(self, x):
        self.rows.add_(x.shape[0])
        return x + self.rows


def test_the_programs_share_their_state(tmp_path):
    report = report_of(Counter(), (torch.zeros(4, 3),), ["x.0=1|2..8"])
    fe.save_bundle(fe.bind(bundle_of(report), {"rows": torch.zeros(())}), tmp_path / "model.pt2")
    call, module = fe.open_program(tmp_path / "model.pt2"), Counter()

    for size in (1, 3, 1, 8, 1):
        x = torch.zeros(size, 3)
        assert torch.equal(call({"x": x})["output"], module(x))


class Groups(nn.Module):
    def forward(self, x):
        return x.view(-1, 4, 3).sum(1)


class Table(nn.Module):
    def __init__(self):
        super().__init__()
        self.register_buffer("table", torch.arange(10.0), persistent=False)

    def forward(self, x):
        return x + self.table[: x.shape[0], None]


class Area(nn.Module):
    def forward(self, x):
        return x * 2 if x.shape[0] * x.shape[1] > 20 else x


@pytest.mark.parametrize(
    ("module", "example", "dynamic", "is_clean"),
    [
        (Groups(), (8, 3), ["x.0=4|8|12"], True),
        (Groups(), (8, 3), ["x.0=4|5..16"], False),
        (Table(), (4, 3), ["x.0=1|2..10"], True),
        (Table(), (4, 3), ["x.0=1|2..11"], False),
        (Area(), (4, 3), ["x.0=1|2..16", "x.1=1|2..9"], False),
    ],
)
def test_a_range_that_is_not_accepted_as_a_whole_is_an_error(module, example, dynamic, is_clean):
    report = report_of(module, (torch.zeros(example),), dynamic)

    assert report.is_clean is is_clean
    assert is_clean or {each.code for each in report.diagnostics} & {"FE302", "FE303", "FE101"}


class Pair(nn.Module):
    def forward(self, x, pair):
        return x + pair[0] + pair[1]["z"]


def test_inputs_in_containers_change_too():
    example = (torch.zeros(4, 3), (torch.zeros(4, 3), {"z": torch.zeros(4, 1)}))
    bundle = bundle_of(report_of(Pair(), example, ["x.0=1|2..8"]))

    for size in (1, 2, 8):
        x = torch.randn(size, 3)
        made = fe.run(bundle, x, (x.clone(), {"z": x[:, :1]}))["output"]
        assert torch.equal(made, x + x + x[:, :1])


def test_a_square_example_is_not_changed_in_both_dimensions():
    bundle = bundle_of(report_of(nn.ReLU(), (torch.zeros(3, 3),), ["input.0=1|2..8"]))

    assert fe.run(bundle, torch.ones(1, 3))["output"].shape == (1, 3)


@pytest.mark.parametrize("dynamic", [["x.0=1|2..8"], ["auto", "x.0=1|2..8"]])
def test_equal_square_inputs_change_only_in_the_divided_dimension(dynamic):
    """`x.1` always equals `y.1`, and nothing requires a size of `unused`."""
    example = (torch.zeros(3, 3), torch.zeros(3, 3), torch.zeros(3, 3))
    module = Sum()
    bundle = bundle_of(report_of(module, example, dynamic))

    for size in (1, 2, 8):
        x, y, unused = torch.randn(3, size, 3).unbind()
        assert torch.equal(fe.run(bundle, x, y, unused)["output"], module(x, y, unused))


class Sum(nn.Module):
    def forward(self, x, y, unused):
        return x + y
