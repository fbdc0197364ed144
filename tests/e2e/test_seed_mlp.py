"""The MLP of the first seed, node for node as the seed prints its programs, on a machine without a GPU."""

import pytest
import torch
from torch.export import ExportedProgram
from torch.export.graph_signature import InputKind, OutputKind

import fakexport as fe
from examples import mlp
from fakexport.cli import main

# What the reader of the seed has is a script: stock fake tensors, `torch.device("cuda")`, and no factory.
SCRIPT = """
import torch
from torch._subclasses.fake_tensor import FakeTensorMode

from examples.mlp import MLP

for first, second in (("cpu", "cpu"), ("cuda", "cuda"), ("cpu", "cuda")):
    with FakeTensorMode():
        model = MLP(torch.device(first), torch.device(second)).eval()
        example = torch.randn(4, 128, device=torch.device(first))
    for node in torch.export.export(model, (example,)).graph.nodes:
        if node.op == "call_function":
            print(node.name, node.target, node.args, sorted(node.kwargs.items()))
"""
CPU = torch.device("cpu")
GPU = torch.device("cuda", 0)

# Factory, topology, and the devices that the seed prints: of the metadata check before the move, of the move.
PROGRAMS = [
    pytest.param(mlp.cpu, "cpu", CPU, CPU, id="cpu"),
    pytest.param(mlp.gpu, "H100", GPU, GPU, id="gpu"),
    pytest.param(mlp.hybrid, "cpu+H100", CPU, GPU, id="hybrid"),
]


def printed_by_the_seed(before: torch.device, after: torch.device) -> list[tuple[object, ...]]:
    aten = torch.ops.aten
    return [
        ("linear", aten.linear.default, ("x", "p_fc1_weight", "p_fc1_bias"), {}),
        ("gelu", aten.gelu.default, ("linear",), {}),
        (
            "_assert_tensor_metadata_default",
            aten._assert_tensor_metadata.default,
            ("gelu",),
            {"dtype": torch.float32, "device": before, "layout": torch.strided},
        ),
        (
            "to",
            aten.to.dtype_layout,
            ("gelu",),
            {"dtype": torch.float32, "layout": torch.strided, "device": after},
        ),
        ("linear_1", aten.linear.default, ("to", "p_fc2_weight", "p_fc2_bias"), {}),
    ]


def calls_of(program: ExportedProgram) -> list[tuple[object, ...]]:
    return [
        (node.name, node.target, tuple(str(arg) for arg in node.args), dict(node.kwargs))
        for node in program.graph.nodes
        if node.op == "call_function"
    ]


@pytest.mark.parametrize(("factory", "topology", "before", "after"), PROGRAMS)
def test_the_program_is_the_one_the_seed_prints(factory, topology, before, after):
    program = fe.export(factory, target=topology)

    assert calls_of(program) == printed_by_the_seed(before, after)
    inputs = [(spec.arg.name, spec.kind, spec.target) for spec in program.graph_signature.input_specs]
    assert inputs == [
        ("p_fc1_weight", InputKind.PARAMETER, "fc1.weight"),
        ("p_fc1_bias", InputKind.PARAMETER, "fc1.bias"),
        ("p_fc2_weight", InputKind.PARAMETER, "fc2.weight"),
        ("p_fc2_bias", InputKind.PARAMETER, "fc2.bias"),
        ("x", InputKind.USER_INPUT, None),
    ]
    outputs = [(spec.arg.name, spec.kind) for spec in program.graph_signature.output_specs]
    assert outputs == [("linear_1", OutputKind.USER_OUTPUT)]
    assert not program.range_constraints
    assert all(fe.is_fake(weight) for weight in program.state_dict.values())
    shapes = [tuple(weight.shape) for weight in program.state_dict.values()]
    assert shapes == [(256, 128), (256,), (10, 256), (10,)]


def test_one_factory_gives_the_three_programs_by_device_map():
    mixed = fe.export(mlp.factory, target="cpu+H100", device_map="fc1=cpu,act=cpu,fc2=cuda:0")
    gpu = fe.export(mlp.factory, target="H100", device_map="cuda:0")

    assert calls_of(mixed) == printed_by_the_seed(CPU, GPU)
    assert calls_of(gpu) == printed_by_the_seed(GPU, GPU)


def test_the_script_of_the_seed_runs_as_it_is(tmp_path, capsys):
    (tmp_path / "seed.py").write_text(SCRIPT)

    code = main(["emulate", "H100", str(tmp_path / "seed.py")])

    expected = [
        f"{name} {target} {parts(args)} {sorted(kwargs.items())}"
        for program in PROGRAMS
        for name, target, args, kwargs in printed_by_the_seed(*program.values[2:])
    ]
    assert code == 0
    assert capsys.readouterr().out.splitlines() == expected


def parts(args: tuple[object, ...]) -> str:
    """Nodes as torch prints them in a tuple."""
    return f"({', '.join(map(str, args))}{',' if len(args) == 1 else ''})"
