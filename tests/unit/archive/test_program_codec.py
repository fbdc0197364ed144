"""A program to JSON and back, with stock torch's serializer as the oracle on either side."""

from __future__ import annotations

import hashlib
import json
from itertools import cycle
from pathlib import Path

import pytest
import torch
from torch.export import ExportedProgram, export

import fakexport as fe
from fakexport.archive.codec.program import program_from_json, program_to_json
from tests.forked import run_python
from tests.same_nodes import nodes_equal
from tests.unit.archive.programs import (
    branches,
    by_name,
    every_kind,
    stock_program,
    stock_text,
    text_of,
    tiny,
    without_traces,
)

ROOT = Path(__file__).parents[3]
ARCHITECTURES = ["llama", "gpt2", "bert", "t5", "vit", "resnet", "swin", "whisper", "wav2vec2", "clip"]


def assert_same(a: ExportedProgram, b: ExportedProgram) -> None:
    assert nodes_equal(a, b) == ()


def with_values(read: ExportedProgram, original: ExportedProgram) -> ExportedProgram:
    """The program that was read, with the weights and constants of the original."""
    read.state_dict.update(original.state_dict)
    read.constants.update(original.constants)
    return read


def assert_codec(program: ExportedProgram) -> None:
    """Every way round gives the program back."""
    text = text_of(program_to_json(program))
    stocks = stock_text(program)

    ours = program_from_json(json.loads(text))
    ours.validate()
    assert_same(program, ours)
    assert ours.graph_module.code == program.graph_module.code
    assert text_of(program_to_json(ours)) == text
    assert_same(program, program_from_json(json.loads(stocks)))
    assert by_name(without_traces(json.loads(text))) == by_name(without_traces(json.loads(stocks)))
    oracle = stock_program(stocks, ours.state_dict, ours.constants)
    assert_same(oracle, stock_program(text, ours.state_dict, ours.constants))


WAYS = list(zip(ARCHITECTURES, cycle([None, "auto", "auto"]), cycle(["cpu", "H100"]), strict=False))


@pytest.mark.slow
@pytest.mark.alone
@pytest.mark.filterwarnings("ignore")
@pytest.mark.parametrize(("name", "dynamic", "topology"), WAYS)
def test_a_transformer_comes_back(name, dynamic, topology, tmp_path):
    assert_codec(tiny(name, tmp_path, topology, dynamic))


@pytest.mark.parametrize(("factory", "topology"), [("cpu", "cpu"), ("gpu", "H100"), ("hybrid", "cpu+H100")])
def test_the_seeds_program_comes_back(factory, topology):
    program = fe.export(f"examples/mlp.py:{factory}", (torch.zeros(4, 128),), target=topology)
    program._example_inputs = None

    assert_codec(program)


@pytest.mark.parametrize("is_dynamic", [False, True])
def test_every_kind_of_argument_comes_back_and_runs(is_dynamic):
    program = every_kind(is_dynamic=is_dynamic)
    state = (program.state_dict, program.constants)
    text = text_of(program_to_json(program))
    inputs, kwargs = (torch.randn(6, 4), True), {"extra": None}

    ours = with_values(program_from_json(json.loads(text)), program)

    assert_same(program, ours)
    expected = program.module()(*inputs, **kwargs)
    for read in (ours, stock_program(text, *state)):
        given = read.module()(*inputs, **kwargs)
        torch.testing.assert_close(given, expected, rtol=0, atol=0)


def test_branches_and_unbacked_symbols_come_back_and_run():
    program = branches()
    text = text_of(program_to_json(program))

    ours = with_values(program_from_json(json.loads(text)), program)

    assert_same(program, ours)
    bindings = [[n.meta.get("unbacked_bindings") for n in p.graph.nodes] for p in (program, ours)]
    assert [bool(b) for b in bindings[0]] == [bool(b) for b in bindings[1]]
    x, n = torch.randn(3), torch.tensor(5)
    for read in (ours, stock_program(text, {}, program.constants)):
        torch.testing.assert_close(read.module()(x, n), program.module()(x, n), rtol=0, atol=0)
    with pytest.raises(RuntimeError):
        ours.module()(x, torch.tensor(1))


def test_ranges_hints_and_conditions_come_back():
    program = every_kind(is_dynamic=True)

    ours = program_from_json(program_to_json(program))

    assert str(ours.range_constraints) == str(program.range_constraints)
    assert ours._guards_code == program._guards_code
    hints = [[n.meta["val"].shape[0] for n in p.graph.nodes if n.name == "x"] for p in (program, ours)]
    assert [size.node.hint for size in hints[0]] == [size.node.hint for size in hints[1]] == [6]


def test_no_path_of_the_machine_is_written(tmp_path):
    path = tmp_path / "project" / "model.py"
    path.parent.mkdir()
    path.write_text(
        "import torch\nclass M(torch.nn.Module):\n"
        "    def forward(self, x):\n        return torch.relu(x) + 1\n"
    )
    scope: dict[str, object] = {}
    exec(compile(path.read_text(), str(path), "exec"), scope)
    program = export(scope["M"](), (torch.ones(2),))

    bare = text_of(program_to_json(program))
    relative = text_of(program_to_json(program, root=tmp_path))

    assert str(tmp_path) not in bare
    assert str(tmp_path) not in relative
    assert r"File \"model.py\"" in bare
    assert r"File \"project/model.py\"" in relative


def test_two_processes_write_the_same_bytes():
    code = (
        "import hashlib, json\n"
        "from fakexport.archive.codec.program import program_to_json\n"
        "from tests.unit.archive.programs import every_kind, branches\n"
        "texts = [json.dumps(program_to_json(p)) for p in (every_kind(is_dynamic=True), branches())]\n"
        "print(hashlib.sha256(''.join(texts).encode()).hexdigest())\n"
    )

    done = run_python(code, folder=ROOT)  # Its hashes have another seed.

    assert done.returncode == 0, done.stderr
    texts = [json.dumps(program_to_json(p)) for p in (every_kind(is_dynamic=True), branches())]
    assert done.stdout.splitlines()[-1] == hashlib.sha256("".join(texts).encode()).hexdigest()


@pytest.mark.parametrize("topology", ["H100", "Max-1550", "M2-Ultra"])
def test_a_program_for_a_device_is_read_where_there_is_none(topology, tmp_path):
    """In a process without emulation, where stock torch fails with `not compiled with CUDA enabled`."""
    verdict = fe.check("examples/mlp.py:factory", target=[topology], inputs=["x=float32[4,128]"]).verdicts[0]
    (tmp_path / "model.json").write_text(text_of(program_to_json(verdict.program)))
    code = (
        "import json, sys, torch\n"
        "from fakexport.archive.codec.program import program_from_json\n"
        "program = program_from_json(json.load(open(sys.argv[1])))\n"
        "weight = program.state_dict['fc1.weight']\n"
        "is_parameter = isinstance(weight, torch.nn.Parameter)\n"
        "print(weight.device, weight.requires_grad, is_parameter, 'linear' in str(program))\n"
    )

    done = run_python(code, tmp_path / "model.json")

    assert done.returncode == 0, done.stderr
    device = verdict.program.state_dict["fc1.weight"].device
    assert done.stdout.splitlines()[-1] == f"{device} True True True"


def test_inputs_get_storage_of_their_own():
    program = program_from_json(program_to_json(every_kind(is_dynamic=True)))

    values = [n.meta["val"] for n in program.graph.nodes if n.op == "placeholder"]
    storages = [v.untyped_storage()._cdata for v in values if isinstance(v, torch.Tensor)]
    assert len(set(storages)) == len(storages)
    everything = [
        id(n.meta["val"]) for n in program.graph.nodes if isinstance(n.meta.get("val"), torch.Tensor)
    ]
    assert len(set(everything)) == len(everything)


def test_a_container_of_a_library_is_refused_by_name():
    from collections import namedtuple

    pair = namedtuple("pair", ["a", "b"])

    class M(torch.nn.Module):
        def forward(self, x):
            return pair(x + 1, x + 2)

    program = export(M(), (torch.ones(2),))

    with pytest.raises(ValueError, match="only tuples, lists and dictionaries"):
        program_to_json(program)


def test_an_operator_that_no_archive_may_name_is_refused_when_it_is_stored():
    program = branches()
    node = next(n for n in program.graph.nodes if n.target is torch.ops.higher_order.cond)
    node.target = torch.ops.higher_order.flat_apply

    with pytest.raises(
        ValueError, match=r"cannot store node cond .*unsupported higher-order operator .*flat_apply"
    ):
        program_to_json(program)


def test_what_cannot_be_stored_names_the_node():
    program = every_kind(is_dynamic=False)
    node = next(n for n in program.graph.nodes if "cat" in n.name)
    node.args = ({1, 2}, *node.args[1:])

    with pytest.raises(ValueError, match=r"cannot store node cat \(aten\.cat\.default\): .*set"):
        program_to_json(program)
