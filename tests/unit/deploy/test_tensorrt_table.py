"""What the table of Torch-TensorRT says about programs, and how the table is read from sources."""

from __future__ import annotations

import json
import tomllib
import zipfile
from pathlib import Path

import pytest
import torch
from torch import nn

import fakexport as fe
from tests.command_line import fakexport
from tools import tensorrt_table


class Layers(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.linear, self.norm = nn.Linear(8, 4), nn.LayerNorm(4)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return torch.relu(self.norm(self.linear(x)))


class Joined(Layers):
    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return torch.cat([super().forward(x), x], dim=-1)


class Middle(Layers):
    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return torch.nanmedian(super().forward(x), dim=-1).values + x.double().sum().float()  # both


class Distances(nn.Module):
    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return torch.ops.aten._cdist_forward(x, x, 2.0, None)


def answer(kind: type[nn.Module], dynamic: list[str] | None = None) -> fe.RuntimeVerdict:
    program = fe.export(lambda: (kind().eval(), (torch.zeros(2, 8),)), target="H100", dynamic_shapes=dynamic)
    return fe.runtime_verdict(program, "tensorrt")


def test_a_program_of_operators_that_are_always_converted_is_taken() -> None:
    found = answer(Layers, ["x.0=2..8"])

    assert (found.result, found.fallbacks, found.codes) == ("taken", (), ())
    assert "torch-tensorrt 2." in found.versions


def test_an_operator_whose_arguments_are_inspected_is_not_certain() -> None:
    found = answer(Joined)

    assert (found.result, found.codes) == ("unknown", ())
    assert "inspect the arguments of aten.cat.default (cat_validator)" in found.notes[-1]


def test_operators_and_dtypes_without_a_converter_run_in_pytorch() -> None:
    found = answer(Middle)

    assert found.text.endswith("fall back to PyTorch")
    reasons = {each.operator: each.reason for each in found.fallbacks}
    assert reasons["aten.nanmedian.dim"] == "Torch-TensorRT has no converter for it"
    assert reasons["aten.sum.default"] == "TensorRT has no float64"
    line = (
        Path(__file__)
        .read_text()
        .splitlines()
        .index(next(text for text in Path(__file__).read_text().splitlines() if text.endswith("# both")))
    )
    assert {each.span.line for each in found.fallbacks if each.span} == {line + 1}


class Pooled(nn.Module):
    def forward(self, x: torch.Tensor) -> tuple[torch.Tensor, ...]:
        rotated = torch.view_as_real(torch.view_as_complex(x.view(2, 4, 2)) * torch.polar(x, x)[:, :4])
        return (
            rotated,
            nn.functional.max_pool2d(x[None], 2),
            torch.tril_indices(2, 2, device=x.device) + x.sum(),
        )


def test_passes_of_torch_tensorrt_come_before_its_converters() -> None:
    found = answer(Pooled)

    assert (found.result, found.fallbacks) == ("unknown", ())
    assert "aten.max_pool2d.default (max_pool_param_validator)" in found.notes[-1]
    assert "aten.view_as_complex.default (complex_graph_detection)" in found.notes[-1]


@pytest.mark.parametrize(("dynamic", "result"), [(None, "taken"), (["x.0=2..8"], "partly")])
def test_a_converter_for_static_shapes_does_not_take_dynamic_ones(dynamic: list[str], result: str) -> None:
    assert answer(Distances, dynamic).result == result


def test_the_table_is_read_from_sources_that_are_not_run(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    sources = {
        "conversion/aten_ops_converters": """
            raise SystemExit
            @dynamo_tensorrt_converter(torch.ops.aten.cat.default, capability_validator=cat_validator)
            @dynamo_tensorrt_converter(torch.ops.aten.mul.Tensor, supports_dynamic_shapes=True)
            def convert(): ...
            for op in (1, 2):
                dynamo_tensorrt_converter(op)
        """,
        "conversion/ops_evaluators": "@dynamo_tensorrt_converter(_operator.add)\ndef convert(): ...",
        "conversion/prims_ops_converters": "",
        "lowering/_decomposition_groups": """
            torch_enabled_decompositions: Set[int] = {aten.fill, aten.lerp}
            torch_disabled_decompositions: Set[int] = {aten.linear.default}
        """,
        "lowering/_decompositions": """
            ATTENTION_DECOMPOSITION_OPS = {aten.attention.default}
            @register_torch_trt_decomposition(aten.rsqrt, registry=TORCH_TRT)
            def replaced(): ...
        """,
        "lowering/passes/complex_graph_rewrite": """
            _ELEMENTWISE_SAFE: FrozenSet[Any] = frozenset({torch.ops.aten.neg.default})
            class Rewriter:
                @_complex_unpacker(torch.ops.aten.abs.default)
                def rewritten(self): ...
        """,
    }
    wheel = tmp_path / "torch_tensorrt-9.8.7-any.whl"
    with zipfile.ZipFile(wheel, "w") as files:
        for name, text in sources.items():
            plain = "\n".join(line.removeprefix(" " * 12) for line in text.splitlines())
            files.writestr(f"torch_tensorrt/dynamo/{name}.py", plain)
    monkeypatch.setattr(tensorrt_table, "TABLE", tmp_path / "table.toml")

    tensorrt_table.main(wheel)

    found = tomllib.loads((tmp_path / "table.toml").read_text())
    assert found == {
        "version": "9.8.7",
        "decomposed": ["aten.fill", "aten.lerp"],
        "replaced": ["aten.rsqrt"],
        "kept": ["aten.attention.default", "aten.linear.default"],
        "complex": ["aten.abs.default", "aten.neg.default"],
        "converters": {
            "aten.cat.default": ["static cat_validator"],
            "aten.mul.Tensor": ["dynamic"],
            "operator.add": ["static"],
        },
    }


def test_the_command_line_asks_the_runtimes_of_the_project(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "joined.py").write_text(
        "import torch\n\n\ndef factory():\n    return torch.nn.Linear(4, 2).eval(), (torch.zeros(3, 4),)\n"
    )
    (tmp_path / "pyproject.toml").write_text(
        '[tool.fakexport]\nsources = ["joined.py:factory"]\nruntime = ["tensorrt"]\n'
    )
    monkeypatch.chdir(tmp_path)

    found = json.loads(fakexport("check", "--format", "json").stdout)
    text = fakexport("check", "joined.py:factory", "--target", "H100").stdout

    (answer,) = found["reports"][0]["targets"][0]["runtimes"]
    assert (answer["runtime"], answer["result"], answer["fallbacks"]) == ("tensorrt", "taken", [])
    assert "    tensorrt: taken (torch-tensorrt 2." in text
    assert (
        "unknown runtime 'trt'" in fakexport("check", "joined.py:factory", "--runtime", "trt", code=2).stderr
    )
