"""Which line of a stack trace is shown to the user."""

from __future__ import annotations

import inspect
import sysconfig
from pathlib import Path

import pytest
import torch
from torch.export import ExportedProgram
from torch.fx import Graph, Node
from transformers.models.llama import modeling_llama

import fakexport
from fakexport.exporting.program import source_span, walk
from tests.unit.exporting.program import small_models
from tests.unit.exporting.program.small_models import MLP

TORCH = Path(torch.__file__).parent
MODEL = '  File "/home/me/model.py", line 12, in forward\n    return self.fc(x)\n'


def node_with(trace: str | None) -> Node:
    node = Graph().placeholder("x")
    if trace is not None:
        node.meta["stack_trace"] = trace
    return node


def test_a_linear_layer_points_at_the_line_that_calls_it() -> None:
    program = torch.export.export(MLP(), (torch.randn(3, 8),))

    spans = {node.name: source_span(node) for node in program.graph.nodes}

    lines, first_line = inspect.getsourcelines(MLP.forward)
    for name in ("linear", "relu", "linear_1"):
        span = spans[name]
        assert span is not None
        assert (span.path, span.line) == (small_models.__file__, first_line + len(lines) - 1)
        assert (span.function, span.origin, span.column) == ("forward", "stack_trace", None)
    assert spans["p_fc1_weight"] is None


@pytest.mark.slow
def test_a_library_model_points_into_the_library(llama: ExportedProgram) -> None:
    linear = next(visit for visit in walk(llama) if visit.node.name == "linear")

    assert linear.span is not None
    assert linear.span.path == modeling_llama.__file__
    assert "q_proj(" in Path(linear.span.path).read_text().splitlines()[linear.span.line - 1]


@pytest.mark.parametrize(
    "skipped",
    [
        str(TORCH / "nn" / "modules" / "linear.py"),
        str(Path(fakexport.__file__).parent / "capture" / "export.py"),
        "/elsewhere/lib/python3.12/site-packages/torch/nn/modules/linear.py",
        "/elsewhere/lib/python3/dist-packages/fakexport/exporting/capture/export.py",
        r"C:\Python\Lib\site-packages\torch\nn\functional.py",
        "torch/nn/modules/linear.py",
        "lib/python3.12/contextlib.py",
        "/elsewhere/lib/python3.12/contextlib.py",
        f"{sysconfig.get_paths()['stdlib']}/contextlib.py",
        "<eval_with_key>.7",
        "<frozen importlib._bootstrap>",
        "<string>",
    ],
)
def test_frames_that_no_user_wrote_are_skipped(skipped: str) -> None:
    span = source_span(node_with(f'{MODEL}  File "{skipped}", line 134, in inner\n    code()\n'))

    assert span is not None
    assert (span.path, span.line) == ("/home/me/model.py", 12)


@pytest.mark.parametrize(
    "kept",
    [
        "/elsewhere/lib/python3.12/site-packages/transformers/models/gpt2/modeling_gpt2.py",
        "/elsewhere/lib/python3.12/site-packages/timm/models/vision_transformer.py",
        "/elsewhere/lib/python3.12/site-packages/torchvision/ops/boxes.py",
        "/home/me/torch/model.py",
        "<stdin>",
        "<ipython-input-3-1a2b>",
        "model.py",
    ],
)
def test_frames_of_models_and_model_libraries_are_kept(kept: str) -> None:
    span = source_span(node_with(f'{MODEL}  File "{kept}", line 7, in attend\n    code()\n'))

    assert span is not None
    assert (span.path, span.line, span.function) == (kept, 7, "attend")


def test_marker_lines_and_missing_blanks_do_not_matter() -> None:
    span = source_span(node_with('File "/home/me/a.py", line 3, in f\n    g(x)\n    ^^^^\n\n'))

    assert span is not None
    assert (span.path, span.line, span.function) == ("/home/me/a.py", 3, "f")


def test_code_that_quotes_a_trace_is_not_taken_for_a_frame() -> None:
    span = source_span(node_with(f"{MODEL}    x = 'File \"/other.py\", line 1, in g'\n"))

    assert span is not None
    assert span.path == "/home/me/model.py"


@pytest.mark.parametrize("trace", [None, "", f'  File "{TORCH}/nn/functional.py", line 1, in relu\n    x\n'])
def test_no_user_frame_gives_no_span(trace: str | None) -> None:
    assert source_span(node_with(trace)) is None
