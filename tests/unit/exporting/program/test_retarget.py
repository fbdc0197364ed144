"""A retargeted program is the program that an export for the other device gives, node for node."""

from __future__ import annotations

import pytest
import torch
from torch import nn

import fakexport as fe
from fakexport._torch.emulation.fake_tensors import fake_elsewhere
from fakexport.emulation.fake import is_fake
from fakexport.emulation.history import constant_value
from fakexport.exporting.program import RetargetError, devices, diff, retargeted, transfers
from tests.same_nodes import nodes_equal
from tests.unit.exporting.program.small_models import MLP, Blocks, Branching, ManyKinds, TwoDevices


class EveryLiteral(nn.Module):
    """Devices by keyword, in an assertion, an autocast region, a subgraph, a literal and a buffer."""

    def __init__(self) -> None:
        super().__init__()
        self.fc = nn.Linear(8, 8)
        self.register_buffer("scale", torch.arange(8.0), persistent=False)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        places = torch.arange(x.shape[1], device=x.device, dtype=x.dtype)
        with torch.autocast(x.device.type, dtype=torch.bfloat16):
            hidden = self.fc(x) * self.scale
        with torch.no_grad():
            shift = torch.full((8,), 2.0, device=x.device)
        literal = torch.tensor([1.0] * 8, device=x.device)
        chosen = torch.cond(x.sum() > 0, self.one_way, self.other_way, (x,))
        return chosen + hidden.float() + shift + literal + places

    def one_way(self, x: torch.Tensor) -> torch.Tensor:
        return x + torch.ones(8, device=x.device)

    def other_way(self, x: torch.Tensor) -> torch.Tensor:
        return x.cos()


class Kinds(ManyKinds):
    """The same with its literal on the device of the input, where a GPU wants it."""

    def forward(self, x: torch.Tensor, times: int = 3) -> dict[str, object]:
        self.steps.add_(1)
        literal = torch.tensor([1.0, 2.0, 3.0, 4.0], device=x.device)
        hidden = self.tied(self.fc(x)) * self.scale * times + self.shift + literal
        return {"hidden": hidden, "extra": (x.shape[0], hidden.nonzero())}


FACTORIES = {
    "mlp": lambda: (MLP(), (torch.zeros(3, 8),)),
    "blocks": lambda: (Blocks((1, 2)), (torch.zeros(3, 8),)),
    "control-flow": lambda: (Branching(), (torch.zeros(3, 4),)),
    "many-kinds": lambda: (Kinds(), (torch.zeros(5, 4), 3)),
    "every-literal": lambda: (EveryLiteral(), (torch.zeros(3, 8),)),
}


QUICK = {("mlp", "auto"), ("blocks", "auto"), ("many-kinds", None)}
UP = [
    pytest.param(name, dynamic, marks=() if (name, dynamic) in QUICK else pytest.mark.slow)
    for name in FACTORIES
    for dynamic in (None, "auto")
    if (name, dynamic) != ("many-kinds", "auto")  # Its `times` is a number.
]


@pytest.mark.parametrize(("name", "dynamic"), UP)
def test_up_it_is_the_native_program(name, dynamic):
    cpu = fe.export(FACTORIES[name], dynamic_shapes=dynamic)

    moved = fe.retarget(cpu, {"cpu": "cuda:0"}, target="H100")

    native = fe.export(FACTORIES[name], target="H100", dynamic_shapes=dynamic)
    assert nodes_equal(moved, native) == ()
    assert diff(moved, native).constants == ()


@pytest.mark.parametrize(
    "name",
    [
        pytest.param(name, marks=pytest.mark.slow if name in ("control-flow", "every-literal") else ())
        for name in FACTORIES
    ],
)
def test_down_it_is_the_native_program(name):
    gpu = fe.export(FACTORIES[name], target="H100")

    moved = fe.retarget(gpu, {"cuda:0": "cpu"})

    native = fe.export(FACTORIES[name])
    assert nodes_equal(moved, native) == ()
    assert diff(moved, native).constants == ()


@pytest.mark.slow
def test_the_input_is_unchanged():
    program = fe.export(FACTORIES["every-literal"])
    before, text = fe.export(FACTORIES["every-literal"]), str(program.graph)

    fe.retarget(program, "cuda:0")

    assert nodes_equal(program, before) == ()
    assert str(program.graph) == text
    assert {tensor.device.type for tensor in program.state_dict.values()} == {"cpu"}


def test_every_place_of_a_device_is_replaced():
    moved = fe.retarget(fe.export(FACTORIES["every-literal"]), {"cpu": "cuda:0"})

    found = devices(moved)
    assert {literal.device for literal in found} == {"cuda:0", "cuda"}
    assert {"creation", "assertion", "autocast", "constant"} <= {literal.kind for literal in found}
    assert {literal.graph.rstrip("_0123456789") for literal in found} == {"", "true_graph", "submod"}
    assert {str(t.device) for t in (*moved.state_dict.values(), *moved.constants.values())} == {"cuda:0"}
    assert moved.example_inputs[0][0].device == torch.device("cuda:0")


def test_positional_devices_text_and_lists_of_a_custom_operator_are_replaced():
    with torch.library._scoped_library("fakexport_tests", "FRAGMENT") as library:
        library.define("place_at(Tensor x, Device d, str[] places, str mode) -> Tensor")
        operator = torch.ops.fakexport_tests.place_at.default
        torch.library.register_fake(
            "fakexport_tests::place_at",
            lambda x, d, places, mode: x.new_empty(x.shape, device=d),
            lib=library,
        )
        program = fe.export(
            lambda: (Calls(operator), (torch.zeros(2),)),
        )

        moved = fe.retarget(program, {"cpu": "cuda:0"})

    (node,) = [node for node in moved.graph.nodes if node.target is operator]
    assert node.args[1:] == (torch.device("cuda:0"), ["cuda", "cpu_offload"], "cuda")
    assert node.meta["val"].device == torch.device("cuda:0")


class Calls(nn.Module):
    def __init__(self, operator) -> None:
        super().__init__()
        self.operator = operator

    def forward(self, x):
        return self.operator(x, torch.device("cpu"), ["cpu", "cpu_offload"], "cpu")


def test_deliberate_moves_stay():
    program = fe.export(lambda: (TwoDevices(), (torch.zeros(3, 8, device="cuda:0"),)), target="2xH100")

    moved = fe.retarget(program, {"cuda:0": "cuda:1", "cuda:1": "cuda:0"}, target="2xH100")

    routes = [(move.source, move.target) for move in transfers(program)]
    assert routes == [("cuda:0", "cuda:1"), ("cuda:1", "cpu")]
    assert [(move.source, move.target) for move in transfers(moved)] == [
        ("cuda:1", "cuda:0"),
        ("cuda:0", "cpu"),
    ]


class Halves(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.first = MLP()
        self.second = nn.Linear(4, 4)

    def forward(self, x):
        hidden = self.first(x)
        return self.second(hidden).sin(), torch.arange(4, device=x.device), hidden


def test_a_map_of_modules_gives_the_program_that_an_export_with_this_map_gives():
    factory = lambda: (Halves(), (torch.zeros(3, 8),))  # noqa: E731
    device_map = {"first": "cuda:0", "second": "cuda:1", "": "cuda:0"}

    moved = fe.retarget(fe.export(factory), device_map=device_map, target="2xH100")

    native = fe.export(factory, target="2xH100", device_map=device_map)
    assert nodes_equal(moved, native) == ()
    assert [(move.source, move.target) for move in transfers(moved)] == [("cuda:0", "cuda:1")]


def test_a_map_may_be_text():
    program = fe.export(FACTORIES["mlp"])

    moved = fe.retarget(program, device_map="fc1=cuda:0,=cuda:1", target="2xH100")

    devices_of_weights = {name: str(tensor.device) for name, tensor in moved.state_dict.items()}
    assert devices_of_weights["fc1.weight"] == "cuda:0"
    assert devices_of_weights["fc2.weight"] == "cuda:1"


def test_values_stay_known_there_and_back():
    factory = lambda: (Kinds(), (torch.zeros(5, 4), 3))  # noqa: E731
    program = fe.export(factory)
    constants = {name: value.clone() for name, value in program.constants.items()}

    there = fe.retarget(program, "cuda:0")
    back = fe.retarget(there, "cpu")

    assert constants
    assert all(is_fake(value) for value in there.constants.values())
    for name, value in constants.items():
        assert torch.equal(constant_value(there.constants[name]), value)
        assert torch.equal(back.constants[name], value)
        assert not is_fake(back.constants[name])


def test_real_weights_without_their_device_become_fakes_that_remember_them():
    module = nn.Linear(4, 2)
    program = torch.export.export(module, (torch.zeros(3, 4),))

    moved = fe.retarget(program, "cuda:0")

    weight = moved.state_dict["weight"]
    assert is_fake(weight)
    assert weight.device == torch.device("cuda:0")
    assert isinstance(weight, nn.Parameter)
    assert torch.equal(constant_value(weight), module.weight)


def test_real_weights_stay_real_where_the_device_is():
    module = MLP()
    inputs = torch.randn(3, 8)
    program = fe.bind(
        fe.export(lambda: (MLP(), (torch.zeros(3, 8),)), target="H100"),
        dict(module.state_dict()),
        devices={"cuda:0": "cpu"},
    )

    same = fe.retarget(program, {"cpu": "cpu"})

    assert not is_fake(same.state_dict["fc1.weight"])
    assert torch.equal(same.module()(inputs), module(inputs))


def test_ties_stay_ties():
    program = fe.export(lambda: (Kinds(), (torch.zeros(5, 4), 3)))

    moved = fe.retarget(program, "cuda:0")

    assert moved.state_dict["fc.weight"] is moved.state_dict["tied.weight"]


def test_a_program_that_refuses_to_run_goes_on_refusing(tmp_path):
    fe.save(fe.export(FACTORIES["mlp"]), tmp_path / "mlp.pt2")

    moved = fe.retarget(fe.load(tmp_path / "mlp.pt2"), "cuda:0")

    with pytest.raises(RuntimeError, match="this program has no weights"):
        moved.module()


@pytest.mark.parametrize(("name", "dynamic"), [("every-literal", None), ("blocks", ["x.0=1..64"])])
def test_a_loaded_program_is_retargeted_like_the_one_that_was_saved(name, dynamic, tmp_path):
    program = fe.export(FACTORIES[name], dynamic_shapes=dynamic)
    fe.save(program, tmp_path / "cpu.pt2")
    fe.save(fe.retarget(program, "cuda:0"), tmp_path / "gpu.pt2")

    moved = fe.retarget(fe.load(tmp_path / "cpu.pt2"), "cuda:0")

    expected = fe.load(tmp_path / "gpu.pt2")
    assert nodes_equal(moved, expected) == ()
    assert diff(moved, expected).constants == ()


class Convolution(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.zeros(4, 3, 3, 3))

    def forward(self, x, table):
        place = x.argmax()[None]
        return torch.conv2d(x, self.weight), table[place]


def test_strict_rules_find_what_fake_mode_lets_pass():
    """A convolution with a weight elsewhere, and a CPU tensor with a CUDA index."""
    factory = lambda: (  # noqa: E731
        Convolution(),
        (torch.zeros(1, 3, 8, 8, device="cuda:0"), torch.zeros(192, device="cuda:0")),
    )
    program = fe.export(factory, target="2xH100", device_map="cuda:0")
    graph = program.graph
    first, second = (node for node in graph.nodes if node.op == "placeholder" and node.name in ("x", "table"))
    with graph.inserting_after(second):
        far = graph.call_function(torch.ops.aten.to.device, (first, torch.device("cuda:1"), torch.float32))
        away = graph.call_function(torch.ops.aten.to.device, (second, torch.device("cpu"), torch.float32))
    far.meta["val"] = fake_elsewhere(first.meta["val"], torch.device("cuda:1"))
    away.meta["val"] = fake_elsewhere(second.meta["val"], torch.device("cpu"))
    next(n for n in graph.nodes if n.target == torch.ops.aten.conv2d.default).replace_input_with(first, far)
    next(n for n in graph.nodes if n.target == torch.ops.aten.index.Tensor).replace_input_with(second, away)

    with pytest.raises(RetargetError) as caught:
        fe.retarget(program, {"cuda:0": "cuda:0"}, target="2xH100")

    assert [diagnostic.code for diagnostic in caught.value.diagnostics] == ["FE502", "FE502"]
    assert {diagnostic.notes[0] for diagnostic in caught.value.diagnostics} == {
        "aten.convolution.default gets input on cuda:1, weight on cuda:0",
        "aten.index.Tensor gets self on cpu, indices[0] on cuda:0",
    }
    assert all(d.primary.span.path == __file__ for d in caught.value.diagnostics)
    assert "\n" not in str(caught.value)


class CountsTokens(nn.Module):
    def forward(self, tokens):
        counted = tokens.float() if tokens.device.type == "cpu" else tokens.int()
        return torch.histc(counted, bins=8, min=0, max=7)


def test_a_kernel_that_the_other_device_lacks_is_an_error_before_anything_is_run():
    gpu = fe.export(lambda: (CountsTokens(), (torch.zeros(16, dtype=torch.int64),)), target="H100")

    with pytest.raises(RetargetError, match="histogram_cpu") as caught:
        fe.retarget(gpu, "cpu")
    with pytest.raises(RetargetError, match="histogram_cpu"):
        fe.bind(gpu, {}, devices="cpu")

    (diagnostic,) = caught.value.diagnostics
    assert (diagnostic.code, diagnostic.node) == ("FE504", "histc")
    assert diagnostic.primary.span.path == __file__


class Resized(nn.Module):
    def forward(self, image):
        return nn.functional.interpolate(image, scale_factor=0.5, mode="bilinear", antialias=True)


class IntegerProduct(nn.Module):
    def forward(self, counts):
        return counts @ counts


@pytest.mark.parametrize(
    ("module", "example", "source", "target", "refused"),
    [
        (Resized(), torch.zeros(1, 3, 8, 8, dtype=torch.bfloat16), "H100", "cpu", "bfloat16"),
        (IntegerProduct(), torch.zeros(4, 4, dtype=torch.int64), "cpu", "cuda:0", "int64"),
    ],
)
def test_a_dtype_that_only_the_kernels_of_the_other_device_refuse_is_an_error(
    module, example, source, target, refused
):
    program = fe.export(lambda: (module, (example,)), target=source)

    with pytest.raises(RetargetError, match=refused) as caught:
        fe.retarget(program, target)

    (diagnostic,) = caught.value.diagnostics
    assert (diagnostic.code, diagnostic.primary.span.path) == ("FE504", __file__)
    assert diagnostic.primary.span.line == type(module).forward.__code__.co_firstlineno + 1
    assert ".to(torch.float32)`" in str(diagnostic.fix)


def test_layers_on_two_kinds_of_devices_change_places_where_one_has_no_kernel():
    layers = nn.Sequential(nn.Conv2d(3, 3, 1), nn.Sequential(nn.Conv2d(3, 3, 1), Resized()))
    layers = layers.bfloat16()
    example = torch.zeros(1, 3, 8, 8, dtype=torch.bfloat16)
    program = fe.export(lambda: (layers, (example,)), target="H100")
    mixed = fe.retarget(program, device_map={"0": "cpu", "1": "cuda:0"})

    with pytest.raises(RetargetError, match="bfloat16") as caught:
        fe.retarget(mixed, device_map={"0": "cuda:0", "1": "cpu"})
    assert [diagnostic.code for diagnostic in caught.value.diagnostics] == ["FE504"]


def test_a_dtype_that_a_region_of_autocast_casts_is_no_error():
    class Cast(nn.Module):
        def forward(self, image):
            with torch.autocast("cpu", dtype=torch.float32, enabled=False):
                return Resized()(image.float())

    program = fe.export(lambda: (Cast(), (torch.zeros(1, 3, 8, 8, dtype=torch.bfloat16),)), target="H100")

    assert fe.retarget(program, "cpu") is not None


class Attention(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.qkv = nn.Linear(32, 96)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        q, k, v = self.qkv(x).view(2, 16, 3, 4, 8).permute(2, 0, 3, 1, 4)
        return nn.functional.scaled_dot_product_attention(q, k, v).transpose(1, 2).reshape(2, 16, 32)


def test_attention_that_takes_another_kernel_is_said():
    program = fe.export(lambda: (Attention(), (torch.zeros(2, 16, 32),)), dtype=torch.bfloat16)

    made = retargeted(program, "cuda:0", topology="T4")

    native = fe.export(lambda: (Attention(), (torch.zeros(2, 16, 32),)), target="T4", dtype=torch.bfloat16)
    (note,) = made.notes
    assert note.startswith(
        "aten.scaled_dot_product_attention.default runs a different kernel on the new devices: stride"
    )
    assert attention(made.program).stride() == attention(native).stride() != attention(program).stride()


def attention(program):
    name = "aten.scaled_dot_product_attention.default"
    return next(node.meta["val"] for node in program.graph.nodes if str(node.target) == name)


@pytest.mark.parametrize(
    ("given", "text"),
    [
        ({"cuda:3": "cpu"}, "the program does not use cuda:3; its devices are cpu"),
        ({"cpu": "gpu7"}, "unknown device 'gpu7': "),
        ("cpu=", "device map 'cpu=': expected FROM=TO, such as cpu=cuda:0, got 'cpu='"),
        ("cpu=cuda:0,cpu=cuda:1", "device map 'cpu=cuda:0,cpu=cuda:1' contains 'cpu' twice"),
        ("nowhere", "unknown device 'nowhere': "),
        ({}, "the device map is empty"),
        ({"cpu": "cuda:0", "fc1": "cuda:1"}, "either devices or module paths, not both"),
        ({"fc3": "cuda:0", "": "cpu"}, "names 'fc3', which is not a module of the program; nearest: fc"),
        (
            {"fc1": "cuda:0"},
            "the device map has no entry for fc2.weight: add one, or an entry '' for all other modules",
        ),
        ({"cpu": "cuda:1"}, "topology 'H100' has no device 'cuda:1'"),
    ],
)
def test_a_map_that_does_not_fit_is_one_line(given, text):
    program = fe.export(FACTORIES["mlp"])
    name = "device_map" if "fc" in next(iter(given), "") else "devices"

    with pytest.raises(ValueError, match=r"^[^\n]+$") as caught:
        fe.retarget(program, **{name: given}, target="H100")

    assert text in str(caught.value)


def test_what_is_no_map_is_a_type_error():
    with pytest.raises(TypeError, match="a device map must be a device or a mapping, not int"):
        fe.retarget(fe.export(FACTORIES["mlp"]), 3)  # type: ignore[arg-type]
