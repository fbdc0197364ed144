"""FE801: what ExecuTorch cannot run, all of it at once, at the user's line, before a file is written."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch
from torch import nn

import fakexport as fe
from fakexport.deploy import CompileFailure
from fakexport.deploy.executorch.coverage import cover_executorch

pytest.importorskip("executorch")

from fakexport.deploy.executorch import compile_executorch
from fakexport.deploy.executorch.findings import short_plans
from fakexport.deploy.executorch.trial import planned_sizes
from fakexport.deploy.signature import Signature


@torch.library.custom_op("fakexport_edge::scale", mutates_args=())
def scale(x: torch.Tensor) -> torch.Tensor:
    return x * 2


@scale.register_fake
def _(x):
    return torch.empty_like(x)


class Call(nn.Module):
    def __init__(self, call):
        super().__init__()
        self.call = call

    def forward(self, *inputs):
        return self.call(*inputs)


class Several(nn.Module):
    def forward(self, x):
        a = torch.linalg.inv(x)
        b = torch.cummax(x, 0).values + torch.cummax(x, 1).values
        c = torch.ops.fakexport_edge.scale(x)
        return a + b + c


class Ones(nn.Module):
    def forward(self, n):
        length = n.item()
        return torch.ones(length) * 2


class Reshaped(nn.Module):
    def forward(self, x):
        turned = torch.cos(x) * 2
        return turned.reshape(-1, 2, 4)


class Places(nn.Module):
    def forward(self, x):
        return torch.nonzero(x).reshape(-1, 2, 4)


class Zeros(nn.Module):
    def forward(self, x):
        placed = torch.nonzero(x == 0).reshape(-1, 2, 4)
        return placed


def failure(call, *inputs, folder, shapes=None, backend="portable"):
    program = torch.export.export(
        call if isinstance(call, nn.Module) else Call(call),
        inputs,
        dynamic_shapes=None if shapes is None else (shapes,),
    )
    with pytest.raises(CompileFailure) as caught:
        compile_executorch(program, folder / "model.pte", backend=backend)
    assert not list(folder.glob("*.pte"))
    assert {diagnostic.code for diagnostic in caught.value.diagnostics} == {"FE801"}
    return caught.value.diagnostics


def line_of(text):
    lines = Path(__file__).read_text().splitlines()
    return next(number for number, line in enumerate(lines, 1) if line.strip().startswith(text))


@pytest.mark.parametrize("backend", ["portable", pytest.param("xnnpack", marks=pytest.mark.slow)])
def test_all_operators_are_found_at_once_at_their_lines(backend, tmp_path):
    found = failure(Several(), torch.eye(3), folder=tmp_path, backend=backend)

    lines = {diagnostic.notes[0].split()[0]: diagnostic for diagnostic in found}
    inverse = lines["aten.linalg_inv_ex.default"]
    assert inverse.primary.span.path == __file__
    assert inverse.primary.span.line == line_of("a = torch.linalg.inv")
    assert lines["aten.cummax.default"].primary.span.line == line_of("b = torch.cummax")
    assert lines["aten.cummax.default"].count == 2
    custom = lines["fakexport_edge.scale.default"]
    assert custom.primary.span.line == line_of("c = torch.ops")
    assert custom.fault == "operator library"


def test_a_size_without_a_bound_is_found_for_each_input(tmp_path):
    program = torch.export.export(
        Call(lambda x, y: (x * 2, y + 1)),
        (torch.zeros(4, 3), torch.zeros(5)),
        dynamic_shapes=(
            ({0: torch.export.Dim("rows", max=8), 1: torch.export.Dim.AUTO}, {0: torch.export.Dim.AUTO}),
        ),
    )

    with pytest.raises(CompileFailure) as caught:
        compile_executorch(program, tmp_path / "model.pte")

    fixes = [diagnostic.fix.message for diagnostic in caught.value.diagnostics]
    assert fixes == [
        "export it with a bound: `--dynamic inputs_0.1=1..64`",
        "export it with a bound: `--dynamic inputs_1.0=1..64`",
    ]


@pytest.mark.slow
def test_executorch_itself_takes_the_example_for_the_bound():
    """Why a size without a bound is refused; if this fails, ExecuTorch has learned to say so."""
    from executorch.exir import to_edge_transform_and_lower
    from executorch.runtime import Runtime

    program = torch.export.export(
        Call(lambda x: x * 2), (torch.zeros(4),), dynamic_shapes=(({0: torch.export.Dim.AUTO},),)
    )

    content = to_edge_transform_and_lower(program).to_executorch().buffer

    method = Runtime.get().load_program(content).load_method("forward")
    with pytest.raises(RuntimeError, match="0x10"):
        method.execute((torch.zeros(5),))


@pytest.mark.slow
def test_a_plan_that_is_too_short_is_found():
    from executorch.exir import to_edge_transform_and_lower

    rows = torch.export.Dim("rows", max=8)
    program = torch.export.export(
        Call(lambda x, y: x * 2 + y), (torch.zeros(4, 3), torch.zeros(3)), dynamic_shapes=(({0: rows}, {}),)
    )
    whole = to_edge_transform_and_lower(program).to_executorch().buffer
    short = torch.export.export(Call(lambda x, y: x * 2 + y), (torch.zeros(4, 3), torch.zeros(3)))
    content = to_edge_transform_and_lower(short).to_executorch().buffer
    wanted = dict(enumerate(Signature.of(program).inputs))

    assert list(short_plans(wanted, planned_sizes(whole, [0, 1]))) == []
    (found,) = short_plans(wanted, planned_sizes(content, [0, 1]))
    assert found.notes[0].endswith("inputs_0 of shape [4, 3], but the program accepts up to [8, 3]")


@pytest.mark.slow
def test_a_size_that_depends_on_data_needs_a_bound(tmp_path):
    (found,) = failure(Ones(), torch.tensor(3), folder=tmp_path)

    assert found.primary.span.line == line_of("length = n.item()")
    assert "torch._check" in found.fix.message


def test_a_size_that_depends_on_data_and_has_a_bound_compiles(tmp_path):
    def first(x, n):
        length = n.item()
        torch._check(length >= 0)
        torch._check(length <= 3)
        return x[:length] + 1

    program = torch.export.export(Call(first), (torch.zeros(3), torch.tensor(2)))

    assert compile_executorch(program, tmp_path / "model.pte").path.exists()


@pytest.mark.slow
def test_a_loop_is_found(tmp_path):
    def loop(x):
        return torch._higher_order_ops.while_loop(
            lambda i, x: i < 3, lambda i, x: (i + 1, x * 2), (torch.tensor(0), x)
        )[1]

    (found,) = failure(loop, torch.zeros(4), folder=tmp_path)

    assert found.notes[0].startswith("higher_order.while_loop at node while_loop")


@pytest.mark.slow
@pytest.mark.parametrize("are_examples", [True, False])
def test_a_kernel_that_fails_in_a_call_is_found_at_its_line_before_a_file_is_written(are_examples, tmp_path):
    """ExecuTorch compiles it. Without example inputs it is called with zeros, which torch accepts."""
    program = torch.export.export(Zeros(), (torch.zeros(8),))
    if not are_examples:
        program = fe.bind(fe.export(Zeros, (torch.zeros(8),)), {})

    with pytest.raises(CompileFailure) as caught:
        compile_executorch(program, tmp_path / "model.pte")

    (found,) = caught.value.diagnostics
    assert found.notes[0].startswith("aten.view_copy.out at node aten_view_copy_default has a kernel that")
    assert found.primary.span.line == line_of("placed = torch.nonzero")
    assert "input tensors have different dim orders" in found.notes[1]
    assert not list(tmp_path.iterdir())


@pytest.mark.slow
def test_a_convolution_of_three_dimensions_is_found_without_a_call(tmp_path):
    """ExecuTorch compiles it, and its kernel rejects it. A program with large weights is not called."""

    class Large(nn.Module):
        def __init__(self):
            super().__init__()
            self.convolution = nn.Conv3d(1, 1, 2)
            self.table = nn.Parameter(torch.zeros(1 << 28))

        def forward(self, x):
            return self.convolution(x) + self.table[0]

    with pytest.raises(CompileFailure) as caught:
        cover_executorch(fe.export(Large, (torch.zeros(1, 1, 4, 4, 4),)), "xnnpack")

    (found,) = caught.value.diagnostics
    assert "has a kernel for 3 or 4 dimensions, but the argument has 5" in found.notes[0]


class Counted(nn.Module):
    """Numbers from 1 on, so that torch refuses zeros as well."""

    def forward(self, numbers):
        return nn.functional.embedding(numbers - 1, torch.ones(4, 2))


@pytest.mark.slow
def test_zeros_that_torch_refuses_are_no_finding(tmp_path):
    program = fe.bind(fe.export(Counted, (torch.ones(3, dtype=torch.int64),)), {})

    (note,) = compile_executorch(program, tmp_path / "model.pte").notes

    assert note.startswith("the program has no example inputs to test with, and a call with zeros failed: ")


@pytest.mark.slow
def test_a_kernel_that_refuses_the_memory_order_that_executorch_planned_is_found_at_its_line(tmp_path):
    x = torch.zeros(3, 2, 2, 2).to(memory_format=torch.channels_last)
    sizes = {0: torch.export.Dim("batch", max=16)}

    (turned,) = failure(Reshaped(), x, folder=tmp_path, shapes=sizes)
    (places,) = failure(Places(), torch.zeros(8), folder=tmp_path)

    assert turned.notes[0].startswith("aten.mul.out at node aten_mul_tensor has a kernel that rejects")
    assert turned.primary.span.line == line_of("turned = torch.cos(x) * 2")
    assert places.notes[0].startswith("aten.view_copy.out at node aten_view_copy_default has a kernel that")
    assert places.primary.span.line == line_of("return torch.nonzero(x).reshape(-1, 2, 4)")
    assert "input tensors have different dim orders" in places.notes[1]


@pytest.mark.slow
def test_complex_numbers_that_have_kernels_are_not_refused(tmp_path):
    """ExecuTorch's own check refuses this operator, and its runtime runs it."""
    x = torch.ones(3, dtype=torch.complex64)
    program = torch.export.export(Call(lambda x: torch.view_as_real(x * x)), (x,))

    assert compile_executorch(program, tmp_path / "model.pte").path.exists()
