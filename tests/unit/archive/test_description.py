"""What `inspect` says of archives, compared with the programs themselves."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch
from torch import nn

import fakexport as fe
from fakexport.archive import describe, save
from fakexport.archive.codec.operator_lookup import refuse_unregistered
from fakexport.archive.loading import load_archive
from fakexport.exporting.program import summarise
from fakexport.files.container import ArchiveError
from fakexport.files.documents import DocumentError
from fakexport.report import render_archive
from tests.forked import run_python
from tests.known_facts import with_facts
from tests.unit.archive.programs import branches, every_kind
from tests.unit.archive.test_save_and_load import Drawn, exported, factory


@pytest.fixture(params=["cpu", "H100"])
def topology(request: pytest.FixtureRequest) -> str:
    return str(request.param)


def test_it_says_what_the_program_says(topology: str, tmp_path: Path) -> None:
    program = exported(topology)
    save(with_facts(program, topology=topology, dynamic_shapes="x.0=2..64"), tmp_path / "model.pt2")

    found = describe(tmp_path / "model.pt2").only

    truth = summarise(program)
    assert (found.program.inputs, found.program.outputs) == (truth.inputs, truth.outputs)
    assert found.program.operators == truth.operators
    assert found.program.call_count == truth.call_count
    assert found.program.range_constraints == truth.range_constraints
    assert found.program.missing_operators == {}
    assert found.manifest.topology == {"cpu": "cpu", "H100": "H100-80GB"}[topology]
    assert [constant.name for constant in found.constants] == list(program.constants)
    assert describe(tmp_path / "model.pt2").notes == ()


@pytest.mark.parametrize("make", [branches, lambda: every_kind(is_dynamic=True)])
def test_subgraphs_symbols_and_changed_buffers_are_described(make, tmp_path: Path) -> None:
    program = make()
    program.example_inputs = None
    torch.export.save(program, tmp_path / "stock.pt2")

    found = describe(tmp_path / "stock.pt2").only.program

    truth = summarise(program)
    assert [(v.name, v.dtype, v.shape) for v in found.inputs] == [
        (v.name, v.dtype, v.shape) for v in truth.inputs
    ]
    assert [(v.name, v.kind, v.dtype, v.shape, v.value) for v in found.outputs] == [
        (v.name, v.kind, v.dtype, v.shape, v.value) for v in truth.outputs
    ]
    operators = {name: count for name, count in truth.operators.items() if name != "operator.getitem"}
    assert found.operators == operators
    assert found.range_constraints == truth.range_constraints


def test_a_constant_without_a_value_has_its_reason(tmp_path: Path) -> None:
    with torch.random.fork_rng(devices=[]):
        torch.seed()
        with pytest.warns(UserWarning, match="FE602"):
            program = fe.export(Drawn, (torch.zeros(4),))
    save(program, tmp_path / "model.pt2")

    (constant,) = describe(tmp_path / "model.pt2").only.constants

    assert constant.name == "noise"
    assert constant.reason
    assert f"without a value: noise: {constant.reason}" in " ".join(
        render_archive(describe(tmp_path / "model.pt2")).split()
    )


def test_an_archive_of_torch_is_marked(tmp_path: Path) -> None:
    program = torch.export.export(factory(), (torch.arange(5),))
    program.example_inputs = None
    torch.export.save(program, tmp_path / "stock.pt2")

    found = describe(tmp_path / "stock.pt2")

    assert not found.has_manifest
    assert "no manifest with hashes: records are only checked against their CRC-32" in render_archive(found)
    assert found.only.manifest.weights == "inside"
    (tied,) = (tensor for tensor in found.manifest.tensors if tensor.aliases)
    assert {tied.name, *tied.aliases} == {"embed.weight", "head.weight"}


def test_pickled_example_inputs_are_described_and_not_read(tmp_path: Path) -> None:
    torch.export.save(torch.export.export(nn.Linear(4, 2), (torch.ones(3, 4),)), tmp_path / "stock.pt2")

    found = describe(tmp_path / "stock.pt2")

    assert found.records["data/sample_inputs/model.pt"] > 0
    assert "note: the example inputs are pickled and were not read" in render_archive(found)


LIBRARY = """
import torch
@torch.library.custom_op("a_library_of_mine::twice", mutates_args=())
def twice(x: torch.Tensor) -> torch.Tensor:
    return x * 2
@twice.register_fake
def _(x):
    return torch.empty_like(x)
class Twice(torch.nn.Module):
    def forward(self, x):
        return twice(twice(x)) + 1
import fakexport as fe, sys
fe.save(fe.export(Twice, (torch.ones(3),)), sys.argv[1])
"""


def test_a_missing_operator_library_is_named_and_the_rest_is_shown(tmp_path: Path) -> None:
    path = tmp_path / "model.pt2"
    assert run_python(LIBRARY, path).returncode == 0

    with pytest.raises(ArchiveError, match="import the operator library `a_library_of_mine` first"):
        load_archive(path)
    found = describe(path).only

    (name,) = found.program.missing_operators
    assert name == "a_library_of_mine.twice.default"
    assert found.program.library_operators == found.manifest.library_operators == (name,)
    assert found.program.operators[name] == 2
    text = " ".join(render_archive(describe(path)).split())
    assert "libraries a_library_of_mine.twice.default is not a torch operator" in text
    assert "missing a_library_of_mine.twice.default: the operator" in text
    assert "import the operator library `a_library_of_mine` first" in text
    assert "inputs x float32[3] cpu" in text


def test_the_module_that_makes_an_operator_is_named(tmp_path: Path) -> None:
    path = tmp_path / "model.pt2"
    (tmp_path / "kernels_of_mine.py").write_text(LIBRARY.partition("import fakexport")[0], encoding="utf-8")
    code = "import sys, torch, fakexport as fe; from kernels_of_mine import Twice\n"
    code += "fe.save(fe.export(Twice, (torch.ones(3),)), sys.argv[1])"
    assert run_python(code, path, folder=tmp_path).returncode == 0

    with pytest.raises(ArchiveError) as refusal:
        load_archive(path)
    found = describe(path).only

    name = "a_library_of_mine.twice.default"
    reason = (
        f"the operator {name} is not registered: import `kernels_of_mine` first, or pass it with --library"
    )
    assert str(refusal.value).endswith(reason)
    assert found.manifest.library_modules == {name: "kernels_of_mine"}
    assert found.program.missing_operators == {name: reason}
    text = " ".join(render_archive(describe(path)).split())
    assert f"libraries {name} is not a torch operator, defined by kernels_of_mine" in text


def test_the_device_map_is_told_in_rows_of_modules(tmp_path: Path) -> None:
    layers = {f"layers.{number}": f"cuda:{number // 10}" for number in range(20)}
    device_map = {"embed": "cuda:0", **layers, "norm": "cuda:1"}
    save(with_facts(exported("cpu"), device_map=device_map), tmp_path / "model.pt2")

    text = render_archive(describe(tmp_path / "model.pt2"))

    assert "device map    cuda:0  embed      .. layers.9\n" in text
    assert "              cuda:1  layers.10  .. norm\n" in text


def test_all_missing_operators_are_named_at_once() -> None:
    with pytest.raises(DocumentError) as refusal:
        refuse_unregistered(["a_library_of_mine.twice.default", "another_library.thrice.default"])

    assert str(refusal.value) == (
        "the operators a_library_of_mine.twice.default, another_library.thrice.default are not registered: "
        "import the code that registers `a_library_of_mine`, `another_library` first, or pass its file with "
        "--library"
    )
