"""Binding is exact, all or nothing, and leaves the given program as it was."""

from __future__ import annotations

import gc
import json
import os
import warnings
from pathlib import Path

import pytest
import torch
from torch import nn

import fakexport as fe
from fakexport.archive.weights import BindError, WeightsWarning
from fakexport.emulation.fake import is_fake


def linear():
    return nn.Linear(4, 2), (torch.zeros(3, 4),)


@pytest.fixture
def module():
    torch.manual_seed(0)
    return nn.Linear(4, 2)


class Tied(nn.Module):
    def __init__(self):
        super().__init__()
        self.embed = nn.Embedding(16, 8)
        self.head = nn.Linear(8, 16, bias=False)
        self.head.weight = self.embed.weight

    def forward(self, tokens):
        return self.head(self.embed(tokens))


class Rotary(nn.Module):
    """Has constants: a buffer, an alias of it, a plain attribute, a literal."""

    def __init__(self):
        super().__init__()
        self.linear = nn.Linear(4, 4)
        self.register_buffer("inv_freq", 1.0 / 100 ** (torch.arange(0, 8, 2) / 8), persistent=False)
        self.register_buffer("original", self.inv_freq, persistent=False)
        self.register_buffer("steps", torch.zeros(1))
        self.offset = torch.arange(8.0).reshape(2, 4).t()[:, 0]

    def forward(self, x):
        scale = torch.tensor([1.0, 2.0, 3.0, 4.0], device=x.device)
        return self.linear(x) * self.inv_freq * self.original + self.offset * scale + self.steps


class Scaled(nn.Module):
    """Has a constant without a value."""

    def __init__(self):
        super().__init__()
        self.linear = nn.Linear(4, 4)
        self.scale = self.linear.bias.detach() * 2

    def forward(self, x):
        return self.linear(x) * self.scale


def scaled_program(**options):
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        return fe.export(Scaled, (torch.zeros(3, 4),), **options)


def equal(program, module, *inputs):
    return torch.equal(program.module()(*inputs), module(*inputs))


def test_the_bound_program_computes_what_the_module_does(module):
    program = fe.export(linear, dynamic_shapes=["input.0=2..64"])

    bound = fe.bind(program, dict(module.state_dict()))

    for rows in (2, 7, 64):
        assert equal(bound, module, torch.randn(rows, 4))


def test_the_given_program_stays_as_it_was(module):
    program = fe.export(linear, target="H100")
    before = str(program)

    fe.bind(program, dict(module.state_dict()), devices="cpu")

    assert str(program) == before
    assert all(is_fake(weight) for weight in program.state_dict.values())
    assert str(program.state_dict["weight"].device) == "cuda:0"
    assert {str(n.meta["val"].device) for n in program.graph.nodes if n.op == "call_function"} == {"cuda:0"}


def test_parameters_stay_parameters_and_buffers_buffers():
    program = fe.export(Rotary, (torch.zeros(3, 4),))

    bound = fe.bind(program, dict(Rotary().state_dict()))

    assert isinstance(bound.state_dict["linear.weight"], nn.Parameter)
    assert bound.state_dict["linear.weight"].requires_grad
    assert not isinstance(bound.state_dict["steps"], nn.Parameter)
    assert list(bound.state_dict) == list(program.state_dict)
    assert dict(bound.named_parameters()).keys() == dict(program.named_parameters()).keys()


@pytest.mark.parametrize("kept", ["embed.weight", "head.weight"])
def test_tied_weights_are_one_tensor_whichever_name_the_checkpoint_has(kept):
    module = Tied()
    tokens = torch.arange(6).reshape(2, 3)
    program = fe.export(Tied, (tokens,))

    bound = fe.bind(program, {kept: module.embed.weight.detach()})

    assert bound.state_dict["embed.weight"] is bound.state_dict["head.weight"]
    assert equal(bound, module, tokens)


def test_equal_entries_of_a_tied_weight_become_one_tensor():
    weight = torch.randn(16, 8)
    program = fe.export(Tied, (torch.zeros(2, 3, dtype=torch.int64),))

    bound = fe.bind(program, {"embed.weight": weight, "head.weight": weight.clone()})

    assert bound.state_dict["embed.weight"] is bound.state_dict["head.weight"]


def test_differing_entries_of_a_tied_weight_are_refused():
    program = fe.export(Tied, (torch.zeros(2, 3, dtype=torch.int64),))

    with pytest.raises(BindError, match=r"1 of 1 weights do not fit: FE705 \(1\)") as caught:
        fe.bind(program, {"embed.weight": torch.zeros(16, 8), "head.weight": torch.ones(16, 8)})

    (finding,) = caught.value.report.findings
    assert (finding.code, finding.severity) == ("FE705", "error")
    assert "their data differs" in finding.cause_text


def test_a_tied_weight_of_another_dtype_counts_once():
    program = fe.export(Tied, (torch.zeros(2, 3, dtype=torch.int64),))
    weight = torch.zeros(16, 8, dtype=torch.float16)

    with pytest.raises(
        BindError, match=r"1 of 1 weights do not fit: FE703 \(1\): .* whole checkpoint is float16"
    ):
        fe.bind(program, {"embed.weight": weight, "head.weight": weight})


def test_all_problems_come_in_one_error():
    program = fe.export(Rotary, (torch.zeros(3, 4),))

    with pytest.raises(BindError) as caught:
        fe.bind(
            program,
            {
                "linear.weight": torch.zeros(4, 5),
                "steps": torch.zeros(1, dtype=torch.float64),
                "x": torch.zeros(1),
            },
        )

    assert [f.code for f in caught.value.report.findings] == ["FE701", "FE702", "FE703", "FE704"]
    assert str(caught.value) == (
        "a mapping does not fit the program: 3 of 3 weights do not fit: FE701 (1), FE702 (1), FE703 (1): "
        "linear.bias (FE701): missing key in checkpoint; linear.weight (FE702): expected "
        "float32[4, 4], but the checkpoint has float32[4, 5] (the configuration may belong to a model of a "
        "different size); steps (FE703): expected float32, but the checkpoint has float64"
    )


@pytest.mark.parametrize("topology", ["cpu", "H100"])
def test_constants_become_real_on_the_bound_device(topology):
    module = Rotary()
    x = torch.randn(3, 4)
    program = fe.export(Rotary, (torch.zeros(3, 4),), target=topology)

    bound = fe.bind(program, dict(module.state_dict()), devices="cpu")

    assert equal(bound, module, x)
    assert bound.constants["inv_freq"] is bound.constants["original"]
    assert not any(is_fake(c) for c in bound.constants.values() if isinstance(c, torch.Tensor))
    assert bound.constants["offset"].stride() == program.constants["offset"].stride()
    assert "cuda" not in str(bound.graph)


def test_a_constant_without_a_value_must_be_given():
    module = Scaled()
    program = scaled_program()
    weights = dict(module.state_dict())

    with pytest.raises(BindError) as caught:
        fe.bind(program, weights)

    (finding,) = caught.value.report.findings
    assert (finding.code, finding.names) == ("FE701", ("scale",))
    assert "constants={name: tensor}" in finding.fix
    x = torch.randn(2, 4)
    program = scaled_program(dynamic_shapes=["x.0=2..9"], target="H100")
    for bound in (
        fe.bind(program, weights, constants={"scale": module.scale}, devices="cpu"),
        fe.bind(program, {**weights, "scale": module.scale}, devices={"cuda:0": "cpu"}),
    ):
        assert equal(bound, module, x)


@pytest.mark.parametrize(
    ("constants", "reason"),
    [
        (
            {"nothing": torch.zeros(4)},
            "'nothing' is not a constant that needs a value; the program needs values for: scale",
        ),
        ({"linear.weight": torch.zeros(4, 4)}, "is not a constant that needs a value"),
        ({"scale": torch.zeros(5)}, "does not fit the program"),
    ],
)
def test_a_wrong_constant_is_refused(constants, reason):
    with pytest.raises(ValueError, match=reason):
        fe.bind(scaled_program(), dict(Scaled().state_dict()), constants=constants)


def test_a_device_that_is_not_here_needs_a_device_map(module):
    program = fe.export(linear, target="H100")

    with pytest.raises(ValueError, match=r"cuda:0 is not on this machine; use devices=\{'cuda:0': 'cpu'\}"):
        fe.bind(program, dict(module.state_dict()))
    with pytest.raises(ValueError, match="the device xpu:0 is not on this machine; choose a different one"):
        fe.bind(program, dict(module.state_dict()), devices="xpu")
    with pytest.raises(ValueError, match="the program does not use cuda:1; its devices are cuda:0"):
        fe.bind(program, dict(module.state_dict()), devices={"cuda:1": "cpu"})
    with pytest.raises(ValueError, match="unknown device 'gpu7'"):
        fe.bind(program, dict(module.state_dict()), devices="gpu7")


def test_an_emulated_device_takes_no_data(module):
    program = fe.export(linear, target="H100")

    with fe.emulate("H100"), pytest.raises(ValueError, match="cuda:0 is not on this machine"):
        fe.bind(program, dict(module.state_dict()))


def test_a_program_of_several_devices_comes_together_on_one():
    class Two(nn.Module):
        def __init__(self):
            super().__init__()
            self.fc1, self.fc2 = nn.Linear(4, 4), nn.Linear(4, 2)

        def forward(self, x):
            with torch.autocast(x.device.type, dtype=torch.bfloat16):
                x = self.fc1(x)
            return self.fc2(x.float() + torch.arange(4, device=x.device))

    module = Two()
    program = fe.export(Two, (torch.zeros(3, 4),), target="cpu+2xH100", device_map="fc1=cuda:0,fc2=cuda:1")

    bound = fe.bind(program, dict(module.state_dict()), devices="cpu")

    assert equal(bound, module, torch.randn(3, 4))
    assert "cuda" not in bound.graph_module.print_readable(print_output=False)


def test_a_dtype_converts_to_what_the_graph_has(module):
    program = fe.export(linear)
    halves = {name: tensor.bfloat16() for name, tensor in module.state_dict().items()}

    bound = fe.bind(program, halves, dtype=torch.float32)

    assert bound.state_dict["weight"].dtype == torch.float32
    assert torch.equal(bound.state_dict["weight"], halves["weight"].float())
    with pytest.raises(BindError, match=r"FE703 \(2\)"):
        fe.bind(program, halves)
    with pytest.raises(ValueError, match="the program's graph computes in float32, not in bfloat16"):
        fe.bind(program, halves, dtype=torch.bfloat16)


def test_weights_get_the_strides_of_the_program():
    class Channels(nn.Module):
        def __init__(self):
            super().__init__()
            self.conv = nn.Conv2d(3, 4, 3).to(memory_format=torch.channels_last)
            self.turned = nn.Parameter(torch.randn(4, 3).t())

        def forward(self, x):
            return (
                self.conv(x) + self.turned.view(-1)[:4].sum() if self.turned.is_contiguous() else self.conv(x)
            )

    module = Channels()
    contiguous = {name: tensor.contiguous() for name, tensor in module.state_dict().items()}
    x = torch.randn(1, 3, 8, 8)
    program = fe.export(Channels, (x,))

    bound = fe.bind(program, contiguous)

    assert bound.state_dict["turned"].stride() == module.turned.stride()
    assert equal(bound, module, x)


@pytest.mark.parametrize("bad", [float("nan"), float("inf")])
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16, torch.float16])
def test_what_is_not_finite_is_a_warning(bad, dtype, module):
    program = (
        fe.export(linear, dtype=dtype)
        if dtype == torch.float32
        else fe.export(lambda: (nn.Linear(4, 2, dtype=dtype), (torch.zeros(3, 4, dtype=dtype),)))
    )
    weights = {name: tensor.to(dtype) for name, tensor in module.state_dict().items()}
    weights["bias"][1] = bad

    with pytest.warns(WeightsWarning, match="FE706: a weight has NaN or infinity: bias"):
        fe.bind(program, weights)
    with warnings.catch_warnings():
        warnings.simplefilter("error", WeightsWarning)
        fe.bind(program, weights, check_finite=False)


def test_fakes_cannot_be_bound():
    program = fe.export(linear)

    with pytest.raises(BindError) as caught:
        fe.bind(program, dict(program.state_dict))

    assert caught.value.report.findings[0].cause_text == "the entries are fake tensors, without data"


def resident_bytes():
    gc.collect()
    pages = int(Path("/proc/self/statm").read_text().split()[1])
    return pages * os.sysconf("SC_PAGE_SIZE")


@pytest.mark.skipif(not Path("/proc/self/statm").exists(), reason="counts pages in /proc")
def test_binding_reads_no_data(tmp_path):
    size, count = 2**28, 8  # 2 GiB, as the file system sees it
    shards = {}
    for index in range(count):
        name = f"model-{index}.safetensors"
        field = {"dtype": "F32", "shape": [2**13, 2**13], "data_offsets": [0, size]}
        header = json.dumps({f"{index}.weight": field}).encode()
        header += b" " * (-len(header) % 8)
        with (tmp_path / name).open("wb") as file:
            file.write(len(header).to_bytes(8, "little") + header)
            file.truncate(8 + len(header) + size)
        shards[f"{index}.weight"] = name
    (tmp_path / "model.safetensors.index.json").write_text(json.dumps({"weight_map": shards}))
    layers = [nn.Linear] * count
    program = fe.export(
        lambda: nn.Sequential(*[layer(2**13, 2**13, bias=False) for layer in layers]),
        (torch.zeros(1, 2**13),),
    )
    before = resident_bytes()

    bound = fe.bind(program, tmp_path)

    assert resident_bytes() - before < 64 * 2**20
    assert bound.state_dict["7.weight"].shape == (2**13, 2**13)
    assert bound.state_dict["7.weight"].untyped_storage().nbytes() == size


@pytest.mark.parametrize("topology", ["cpu", "H100"])
def test_stock_torch_saves_and_loads_the_bound_program_without_a_warning(topology, tmp_path, module):
    program = fe.export(linear, target=topology, dynamic_shapes=["input.0=2..64"])
    bound = fe.bind(program, dict(module.state_dict()), devices="cpu")

    with warnings.catch_warnings():
        warnings.simplefilter("error")
        warnings.filterwarnings("ignore", "`isinstance.treespec, LeafSpec.` is deprecated", FutureWarning)
        torch.export.save(bound, tmp_path / "bound.pt2")
        loaded = torch.export.load(tmp_path / "bound.pt2")

    assert equal(loaded, module, torch.randn(9, 4))
    assert not any(is_fake(value) for value in bound.example_inputs[0])
