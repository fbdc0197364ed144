"""Runtimes answer about programs without weights as they answer about real ones."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import torch
from torch import nn

import fakexport as fe
from fakexport.deploy import RUNTIMES, check_runtimes
from fakexport.deploy.coverage.covered import on_the_cpu, with_example_values
from fakexport.rules import rule
from tests.architectures import ARCHITECTURES
from tests.runtime_packages import QUIET, needs

pytestmark = [
    pytest.mark.slow,
    pytest.mark.usefixtures("torchlib_read_once"),
    *QUIET,
]


class Embedded(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.embedding, self.linear, self.norm = nn.Embedding(10, 8), nn.Linear(8, 4), nn.LayerNorm(4)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.norm(torch.relu(self.linear(self.embedding(x)))).cumsum(-1)


def embedded() -> tuple[nn.Module, tuple[torch.Tensor]]:
    return Embedded().eval(), (torch.zeros(2, 3, dtype=torch.int64),)


@pytest.mark.parametrize(
    ("runtime", "name"), [("executorch", "model.pte"), ("onnx", "model.onnx"), ("aoti", "model.pt2")]
)
def test_a_refusal_is_the_diagnostic_of_the_failed_conversion(
    runtime: str, name: str, tmp_path: Path
) -> None:
    needs(runtime)
    namespace: dict[str, Any] = {"__name__": "refused"}
    path = tmp_path / "refused.py"
    path.write_text(rule(RUNTIMES[runtime].rule).failing_model or "")
    exec(compile(path.read_text(), str(path), "exec"), namespace)
    program = fe.export(namespace["factory"])
    bound = fe.bind(program, namespace["factory"]()[0].state_dict())

    answer = fe.runtime_verdict(program, runtime)

    with pytest.raises(fe.CompileFailure) as raised:
        fe.compile(bound, tmp_path / name, to=runtime)
    assert answer.result == "refused"
    assert answer.diagnostics == raised.value.diagnostics
    assert answer.codes == (RUNTIMES[runtime].rule,)
    assert answer.diagnostics[0].primary is not None


def test_fallbacks_are_the_operators_that_xnnpacks_own_partitioner_leaves_out() -> None:
    needs("executorch:xnnpack")
    from executorch.backends.xnnpack.partition.xnnpack_partitioner import XnnpackPartitioner
    from executorch.exir import to_edge_transform_and_lower

    answer = fe.runtime_verdict(fe.export(embedded), "executorch:xnnpack")

    model, inputs = embedded()
    lowered = to_edge_transform_and_lower(
        torch.export.export(model, inputs), partitioner=[XnnpackPartitioner()]
    )
    left = {
        str(node.target._op)
        for node in lowered.exported_program().graph.nodes
        if node.op == "call_function" and hasattr(node.target, "_op")
    }
    assert answer.result == "partly"
    assert {found.operator for found in answer.fallbacks} == left
    assert answer.fallbacks[0].arguments == "float32[10, 8], int64[2, 3]"
    assert all(found.span is not None and found.span.path == __file__ for found in answer.fallbacks)


def refused(runtime: str, folder: Path) -> fe.RuntimeVerdict:
    """The answer of a runtime for the failing model of its rule, and then for the repaired model."""
    known = rule(RUNTIMES[runtime].rule)
    answers = []
    for name, source in (("failing", known.failing_model), ("repaired", known.repaired_model)):
        path, namespace = folder / f"{name}.py", {"__name__": name}
        path.write_text(source or "")
        exec(compile(path.read_text(), str(path), "exec"), namespace)
        answers.append(fe.runtime_verdict(fe.export(namespace["factory"]), runtime))
    assert answers[1].result == "taken", answers[1]
    return answers[0]


def test_coremltools_names_an_operator_that_it_does_not_know(tmp_path: Path) -> None:
    needs("coreml")
    import coremltools

    answer = refused("coreml", tmp_path)

    (found,) = answer.diagnostics
    line = (
        (rule("FE805").failing_model or "")
        .splitlines()
        .index("        return torch.nanmedian(x, dim=-1).values  # <- FE805")
    )
    assert (answer.result, found.code) == ("refused", "FE805")
    assert found.primary is not None
    assert found.primary.span.line == line + 1
    assert "its arguments: float32[2, 5], -1" in found.notes
    model = torch.export.export(Embedded().eval(), (torch.zeros(2, 3, dtype=torch.int64),))
    coremltools.convert(model.run_decompositions({}), skip_model_load=True)
    assert fe.runtime_verdict(fe.export(embedded), "coreml").result == "taken"


class Masked(nn.Module):
    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return torch.where(x > x.new_ones(2), x, 0.5)


def test_coremltools_takes_more_after_the_printed_decompositions() -> None:
    needs("coreml")
    import coremltools

    program = fe.export(lambda: (Masked(), (torch.rand(3, 2),)))

    answer = fe.runtime_verdict(program, "coreml")

    assert answer.result == "rewritten"
    assert answer.rewrites[0].endswith("(for aten.new_ones.default, aten.where.ScalarOther)")
    with pytest.raises(NotImplementedError, match="Unsupported fx node"):
        coremltools.convert(program.run_decompositions({}), skip_model_load=True)
    code = answer.rewrites[0].split("`")[1]
    coremltools.convert(eval(code, {"program": program, "torch": torch}), skip_model_load=True)


class Unshuffled(nn.Module):
    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return nn.functional.pixel_unshuffle(x, 2)


def test_a_program_that_coremltools_converts_only_after_decompositions_is_taken() -> None:
    needs("coreml")

    answer = fe.runtime_verdict(fe.export(lambda: (Unshuffled(), (torch.rand(1, 1, 4, 4),))), "coreml")

    assert answer.result == "rewritten"
    assert answer.rewrites[0].endswith("(for aten.pixel_unshuffle.default)")


class Checking(nn.Module):
    """A check of a whole tensor, as the vision models of transformers make it."""

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        torch._check(torch._is_all_true(x > 0).item())  # type: ignore[arg-type]
        return x * torch._is_all_true(x > 1)


@pytest.mark.parametrize(("runtime", "name"), [("executorch", "model.pte"), ("onnx", "model.onnx")])
def test_a_check_of_a_whole_tensor_is_rewritten(runtime: str, name: str, tmp_path: Path) -> None:
    needs(runtime)
    program = fe.export(lambda: (Checking(), (torch.ones(2, 3),)))

    assert fe.runtime_verdict(program, runtime).result == "rewritten"
    fe.compile(program, tmp_path / name, to=runtime)
    opened = fe.open_program(tmp_path / name, trust=True)
    for x in (torch.ones(2, 3), torch.full((2, 3), 2.0)):
        assert torch.equal(opened({"x": x})["output"], Checking()(x))


class Squeezing(nn.Module):
    def forward(self, x: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        return x.squeeze(0) + x.unsqueeze(-1).squeeze(-1), x.squeeze(1)


def test_onnx_keeps_a_size_that_squeeze_keeps(tmp_path: Path) -> None:
    needs("onnx")
    x = torch.rand(3, 2)
    sizes = {0: torch.export.Dim("rows", min=2, max=8)}
    program = fe.export(lambda: (Squeezing(), (x,)), dynamic_shapes=(sizes,))

    fe.compile(program, tmp_path / "model.onnx", to="onnx")

    assert fe.runtime_verdict(program, "onnx").result == "rewritten"
    first, second = fe.open_program(tmp_path / "model.onnx")({"x": x[:2]}).values()
    assert torch.equal(first, 2 * x[:2])
    assert torch.equal(second, x[:2])


class Counting(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.register_buffer("calls", torch.zeros(2))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return x + self.calls.add_(1)


class Places(nn.Module):
    def forward(self, x: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        return nn.functional.max_pool2d(x, 2, return_indices=True)


class Flattened(nn.Module):
    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return x.view(6) + 1


def test_litert_torch_does_not_change_the_program() -> None:
    needs("litert")
    program = fe.export(lambda: (Flattened(), (torch.rand(2, 3),)))
    before = [node.target for node in program.graph.nodes]

    fe.runtime_verdict(program, "litert")

    assert [node.target for node in program.graph.nodes] == before


def test_indices_that_litert_torch_computes_wrongly_are_refused() -> None:
    needs("litert")
    import litert_torch

    x = torch.rand(1, 2, 4, 4)

    (found,) = fe.runtime_verdict(fe.export(lambda: (Places(), (x,))), "litert").diagnostics

    assert "litert-torch computes wrong indices" in found.notes[0]
    values, indices = litert_torch.convert(Places().eval(), (x,))(x.numpy())
    expected = Places()(x)
    torch.testing.assert_close(torch.tensor(values), expected[0])
    assert not torch.equal(torch.tensor(indices).long(), expected[1])


def test_litert_torch_names_an_operator_without_a_lowering(tmp_path: Path) -> None:
    needs("litert")
    import litert_torch

    (found,) = refused("litert", tmp_path).diagnostics
    sizes = {0: torch.export.Dim("batch", max=8)}
    dynamic = fe.runtime_verdict(fe.export(embedded, dynamic_shapes=(sizes,)), "litert")
    state = fe.runtime_verdict(fe.export(lambda: (Counting(), (torch.zeros(2),))), "litert")

    assert found.primary is not None
    assert found.primary.span.line == 7
    assert "its arguments: float32[2, 5], -1" in found.notes
    assert dynamic.diagnostics[0].primary is not None
    assert dynamic.diagnostics[0].primary.span.path == __file__
    assert "a call changes the buffer calls" in state.diagnostics[0].notes[0]
    model, (ids,) = embedded()
    converted = litert_torch.convert(model, (ids,))
    torch.testing.assert_close(torch.tensor(converted(ids.int().numpy())), model(ids).detach())
    assert fe.runtime_verdict(fe.export(embedded), "litert").result == "taken"
    with pytest.raises(Exception, match="Shapes must be 1D sequences"):
        litert_torch.convert(model, (ids,), dynamic_shapes=({0: torch.export.Dim("batch", max=8)},))


def test_coremltools_has_no_bfloat16() -> None:
    needs("coreml")
    program = fe.export(lambda: (Halved().eval(), (torch.zeros(2, 8, dtype=torch.bfloat16),)))

    (found,) = fe.runtime_verdict(program, "coreml").diagnostics

    assert "coremltools has no dtype bfloat16" in found.notes[0]
    assert found.primary is not None
    assert found.primary.span.path == __file__


def test_all_operators_of_a_small_model_run_in_core_ml() -> None:
    needs("executorch:coreml")

    answer = fe.runtime_verdict(fe.export(embedded), "executorch:coreml")

    assert (answer.result, answer.fallbacks) == ("taken", ())


class Halved(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.linear = nn.Linear(8, 4, dtype=torch.bfloat16)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.linear(x)


def test_a_dtype_that_onnx_runtime_has_no_kernel_for_is_refused(tmp_path: Path) -> None:
    needs("onnx")
    program = fe.export(lambda: (Halved().eval(), (torch.zeros(2, 8, dtype=torch.bfloat16),)))

    answer = fe.runtime_verdict(program, "onnx")

    fe.compile(fe.bind(program, Halved().state_dict()), tmp_path / "model.onnx", to="onnx")
    with pytest.raises(fe.DeployError, match="no CPU kernel"):
        fe.open_program(tmp_path / "model.onnx")
    assert answer.result == "refused"
    assert "has no kernel for the CPU" in answer.diagnostics[0].notes[0]


def test_programs_that_are_taken_run_with_their_weights(tmp_path: Path) -> None:
    model, inputs = embedded()
    program = fe.export(lambda: (model, inputs), dynamic_shapes=["x.0=2..8"])
    bound = fe.bind(program, model.state_dict())
    for runtime, name in (("onnx", "model.onnx"), ("aoti", "model.pt2")):
        needs(runtime)

        answer = fe.runtime_verdict(program, runtime)

        assert answer.result == "taken", answer
        fe.compile(bound, tmp_path / name, to=runtime)
        opened = fe.open_program(tmp_path / name, trust=True)
        given = torch.randint(0, 10, (5, 3))
        assert torch.allclose(next(iter(opened({"x": given}).values())), model(given), atol=1e-5)


def test_a_check_asks_about_the_program_of_each_target() -> None:
    needs("aoti")
    report = fe.check(embedded, target=["cpu", "H100"], runtimes=["aoti", "aoti"])

    assert report.is_clean, str(report)
    answers = [verdict.runtimes for verdict in report.verdicts]
    assert [[answer.result for answer in each] for each in answers] == [["taken"], ["taken"]]
    assert [any("Triton" in note for note in each[0].notes) for each in answers] == [False, True]
    assert "aoti: taken (torch " in str(report)


def test_a_refused_program_fails_the_check() -> None:
    needs("onnx")
    report = fe.check(
        lambda: (Halved().eval(), (torch.zeros(2, 8, dtype=torch.bfloat16),)), runtimes=["onnx"]
    )

    assert [found.code for found in report.diagnostics] == ["FE802"]
    assert report.verdicts[0].is_exportable
    assert not report.is_clean
    assert "onnx: not: FE802" in str(report)


def test_a_converter_that_ends_its_process_is_an_error(monkeypatch: pytest.MonkeyPatch) -> None:
    import os

    from fakexport.checking import runtime_answers

    monkeypatch.setattr(runtime_answers, "runtime_verdict", lambda *_: os._exit(3))

    report = fe.check(embedded, runtimes=["aoti"])

    assert not report.is_clean
    assert report.verdicts[0].runtimes[0].result == "unknown"
    assert "ended without an answer" in report.diagnostics[0].notes[0]


def test_an_error_of_one_converter_leaves_the_other_answers(monkeypatch: pytest.MonkeyPatch) -> None:
    from fakexport.checking import runtime_answers

    def fail(program: Any, runtime: str) -> fe.RuntimeVerdict:
        if runtime == "aoti":
            raise LookupError("no such thing")
        return fe.runtime_verdict(program, runtime)

    monkeypatch.setattr(runtime_answers, "runtime_verdict", fail)

    report = fe.check(lambda: (nn.Linear(4, 2), (torch.zeros(3, 4),)), runtimes=["aoti", "tensorrt"])

    assert [answer.result for answer in report.verdicts[0].runtimes] == ["unknown", "taken"]
    assert [found.code for found in report.diagnostics] == ["FE001"]
    assert "asking aoti failed: LookupError: no such thing" in str(report)


def test_an_unknown_runtime_is_one_line_with_the_known_ones() -> None:
    with pytest.raises(ValueError, match="unknown runtime 'onxx'; choose from aoti, coreml, executorch"):
        check_runtimes(["onxx"])


@pytest.mark.filterwarnings("ignore")
@pytest.mark.parametrize(
    ("model_type", "runtime", "operator"),
    [
        ("gpt-sw3", "coreml", "aten.new_ones.default"),
        pytest.param("grounding-dino", "onnx", "aten.cummax.default", marks=pytest.mark.exhaustive),
    ],
)
def test_attention_that_a_decomposition_lays_out_differently_hides_no_refusal(
    model_type: str, runtime: str, operator: str, tmp_path: Path
) -> None:
    """A `view` of attention can fail in the decompositions of torch, which raised an error here."""
    needs(runtime)
    architecture = next(each for each in ARCHITECTURES if each.model_type == model_type)

    answer = fe.runtime_verdict(fe.export(architecture.source(tmp_path)), runtime)

    assert answer.result == "refused"
    assert operator in answer.diagnostics[0].notes[0]


class Indexed(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.linear = nn.Linear(3, 3)
        self.register_buffer("order", torch.tensor([2, 0, 1]), persistent=False)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.linear(x)[:, self.order]


@pytest.mark.parametrize("target", ["cpu", "H100"])
def test_converters_get_the_values_of_constants_and_random_weights(target: str) -> None:
    program = fe.export(lambda: (Indexed(), (torch.rand(2, 3),)), target=target)
    moved, _ = on_the_cpu(program, "a converter")

    given = with_example_values(moved)

    assert given.constants["order"].tolist() == [2, 0, 1]
    assert given.state_dict["linear.weight"].unique().numel() == 9
