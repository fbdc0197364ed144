"""Programs compiled for ExecuTorch, and run by its runtime, against eager torch."""

from __future__ import annotations

import pytest
import torch
from torch import nn
from torch.export import Dim

from fakexport.archive import bind, load, save
from fakexport.deploy import DeployError, InputMismatchError, artifact_kind
from fakexport.deploy.opening import open_artifact
from fakexport.exporting.capture import export
from fakexport.exporting.program.weightless import WeightsNotBoundError

pytest.importorskip("executorch")

from fakexport.deploy.executorch import compile_executorch, open_executorch


class Mlp(nn.Module):
    def __init__(self):
        super().__init__()
        torch.manual_seed(0)
        self.up, self.down = nn.Linear(4, 8), nn.Linear(8, 2)

    def forward(self, x):
        return self.down(torch.relu(self.up(x)))


class Leaves(nn.Module):
    """Several outputs: the same one twice, an input, a number, none."""

    def forward(self, x, scale=3, skipped=None, *, ids):
        twice = x * 2
        return {"a": twice, "b": (twice, x, None, 7), "ids": ids * scale}


class Tied(nn.Module):
    def __init__(self):
        super().__init__()
        torch.manual_seed(0)
        self.embed = nn.Embedding(512, 32)
        self.head = nn.Linear(32, 512, bias=False)
        self.head.weight = self.embed.weight

    def forward(self, ids):
        return self.head(self.embed(ids))


class Writes(nn.Module):
    """Into a buffer and into its input."""

    def __init__(self):
        super().__init__()
        self.register_buffer("total", torch.tensor([1.0, 2.0, 3.0]))
        self.register_buffer("calls", torch.zeros((), dtype=torch.int64))

    def forward(self, x):
        self.total.add_(x.sum(0))
        self.calls.add_(1)
        x.add_(1)
        return x * self.total, self.calls.clone()


class Mixed(nn.Module):
    def forward(self, **inputs):
        return {
            name: torch.softmax(x, -1) @ x.transpose(0, 1) + nn.functional.gelu(x @ x.transpose(0, 1))
            for name, x in inputs.items()
        }


def compiled(program, folder, **options):
    return open_executorch(compile_executorch(program, folder / "model.pte", **options).path)


@pytest.fixture(scope="module")
def mlp(tmp_path_factory):
    """A program with a batch of at most 8, and its file."""
    batch = torch.export.Dim("batch", min=1, max=8)
    program = torch.export.export(Mlp().eval(), (torch.randn(3, 4),), dynamic_shapes=({0: batch},))
    path = tmp_path_factory.mktemp("mlp") / "mlp.pte"
    return program, compile_executorch(program, path)


class Padded(nn.Module):
    """With a mask whose sizes follow."""

    def forward(self, x, mask):
        return torch.softmax(x.masked_fill(mask == 0, -1e9), -1)


@pytest.mark.slow
def test_a_range_that_only_one_input_declares_is_that_of_those_that_follow(tmp_path):
    """torch does not tell the shape environment all of the ranges then."""
    sizes = {0: Dim.DYNAMIC(min=2, max=8), 1: Dim.DYNAMIC(min=2, max=16)}
    program = torch.export.export(
        Padded(),
        (torch.zeros(2, 5), torch.ones(2, 5, dtype=torch.int64)),
        dynamic_shapes=(sizes, {0: Dim.AUTO, 1: Dim.AUTO}),
    )
    artifact = compiled(program, tmp_path)

    for shape in [(2, 5), (3, 6), (8, 16)]:
        x, mask = torch.randn(shape), torch.randint(2, shape)
        torch.testing.assert_close(artifact({"x": x, "mask": mask})["output"], Padded()(x, mask))


def test_an_mlp_gives_what_eager_gives_in_any_size_and_layout(mlp):
    opened = open_executorch(mlp[1].path)

    for x in (torch.randn(1, 4), torch.randn(3, 4), torch.randn(8, 4), torch.randn(4, 3).t()):
        torch.testing.assert_close(opened({"x": x}), {"output": Mlp()(x)}, rtol=1e-6, atol=1e-6)


def test_the_file_tells_what_it_is(mlp):
    from executorch.runtime import Runtime

    path = mlp[1].path

    assert artifact_kind(path) == "executorch"
    assert mlp[1].size_bytes == path.stat().st_size
    (x,) = open_artifact(path, "executorch").signature.inputs
    assert (x.name, x.dtype, x.shape[0].upper) == ("x", "float32", 8)
    (text,) = Runtime.get().load_program(path).load_method("fakexport").execute(())
    assert text.startswith('{"format": "fakexport.executorch/1"')
    with pytest.raises(DeployError, match="contains its weights and does not accept a checkpoint"):
        open_executorch(path, checkpoint="model.safetensors")


@pytest.mark.slow
def test_xnnpack_gives_what_eager_gives(mlp, tmp_path):
    program, _ = mlp
    x = torch.randn(5, 4)

    made = compile_executorch(program, tmp_path / "model.pte", backend="xnnpack")

    assert b"XnnpackBackend" in made.path.read_bytes()
    torch.testing.assert_close(open_executorch(made.path)({"x": x})["output"], Mlp()(x), rtol=1e-6, atol=1e-6)


@pytest.mark.slow
def test_xnnpack_takes_no_layer_whose_weight_is_computed(tmp_path):
    """ExecuTorch's own partition reads the integers of a quantized weight as if they were the weight."""
    quantization = pytest.importorskip("torchao.quantization")
    model = Mlp().eval()
    quantization.quantize_(model, quantization.Int8WeightOnlyConfig())
    x = torch.randn(5, 4)
    program = bind(export(model, (x,)), model.state_dict())

    found = compiled(program, tmp_path, backend="xnnpack")({"x": x})

    torch.testing.assert_close(found["output"], model(x), rtol=1e-6, atol=1e-6)


def test_a_call_that_does_not_fit_is_refused_before_native_code(mlp, capfd):
    opened = open_executorch(mlp[1].path)
    capfd.readouterr()

    with pytest.raises(InputMismatchError, match="at most 8"):
        opened({"x": torch.zeros(9, 4)})

    assert capfd.readouterr().err == ""


@pytest.mark.slow
def test_the_same_program_gives_the_same_bytes_and_nothing_is_printed(mlp, tmp_path, capfd):
    program, made = mlp

    again = compile_executorch(program, tmp_path / "again.pte")
    open_executorch(again.path)({"x": torch.zeros(2, 4)})

    assert again.path.read_bytes() == made.path.read_bytes()
    assert capfd.readouterr().out == ""


def test_outputs_have_the_names_of_the_program(tmp_path):
    x, ids = torch.randn(2, 3), torch.arange(5)
    program = export(Leaves(), (x, 3, None), {"ids": ids})

    outputs = compiled(program, tmp_path)({"x": x, "ids": ids})

    assert list(outputs) == ["a", "b.0", "b.1", "ids"]
    expected = Leaves()(x, 3, None, ids=ids)
    for name, value in {"a": expected["a"], "b.0": x * 2, "b.1": x, "ids": ids * 3}.items():
        torch.testing.assert_close(outputs[name], value, rtol=0, atol=0)


@pytest.mark.slow
def test_tied_weights_are_in_the_file_once(tmp_path):
    ids = torch.tensor([[1, 500, 3]])
    program = torch.export.export(Tied().eval(), (ids,))

    made = compile_executorch(program, tmp_path / "model.pte")

    weight_bytes = 512 * 32 * 4
    assert weight_bytes < made.size_bytes < 1.5 * weight_bytes
    torch.testing.assert_close(open_executorch(made.path)({"ids": ids})["output"], Tied()(ids))


class Counted(torch.nn.Module):
    """As many zeros as the input says."""

    def forward(self, x):
        count = x.sum().to(torch.int64).item()
        torch._check(count >= 0)
        torch._check(count <= 8)
        return torch.zeros(count).reshape(-1, 1)


@pytest.mark.slow
def test_a_program_is_as_before_so_that_it_can_be_compiled_again(tmp_path):
    program = torch.export.export(Counted(), (torch.ones(4),))

    made = [compile_executorch(program, tmp_path / name) for name in ("one.pte", "two.pte")]

    assert made[0].path.read_bytes() == made[1].path.read_bytes()
    assert made[0].notes[0].startswith("ExecuTorch has no assertions: the program's assertions are dropped (")
    assert program.run_decompositions().module()(torch.ones(4)).shape == (4, 1)


def test_what_is_written_into_buffers_and_inputs_is_kept(tmp_path):
    program = torch.export.export(Writes(), (torch.ones(2, 3),))
    made = compile_executorch(program, tmp_path / "model.pte")
    opened, eager = open_executorch(made.path), Writes()

    for call in range(3):
        x = torch.full((2, 3), float(call))
        mine = x.clone()
        outputs, expected = opened({"x": mine}), eager(x)
        torch.testing.assert_close(tuple(outputs.values()), expected)
        torch.testing.assert_close(mine, x)
    assert int(open_executorch(made.path)({"x": torch.zeros(2, 3)})["1"]) == 1
    assert made.notes == (
        "the program mutates buffers: they keep their values between calls while the program is loaded",
    )


@pytest.mark.slow
def test_other_dtypes_give_what_eager_gives(tmp_path):
    generator = torch.Generator().manual_seed(0)
    dtypes = {"half": torch.float16, "brain": torch.bfloat16, "double": torch.float64}
    inputs = {name: torch.randn(4, 4, generator=generator).to(dtype) for name, dtype in dtypes.items()}

    outputs = compiled(torch.export.export(Mixed(), (), inputs), tmp_path)(inputs)

    torch.testing.assert_close(outputs, Mixed()(**inputs))


def test_a_program_without_weights_is_refused_by_their_names(tmp_path):
    save(export(Mlp, (torch.zeros(3, 4),)), tmp_path / "model.pt2")

    with pytest.raises(WeightsNotBoundError, match=r"up\.weight, up\.bias"):
        compile_executorch(load(tmp_path / "model.pt2"), tmp_path / "model.pte")

    assert not (tmp_path / "model.pte").exists()


def test_a_program_for_a_gpu_is_refused_with_the_command_that_moves_it(tmp_path):
    program = export(Mlp, (torch.zeros(3, 4),), target="H100", device_map="cuda:0")

    with pytest.raises(DeployError, match=r"fakexport retarget .* --to cuda:0=cpu"):
        compile_executorch(program, tmp_path / "model.pte")
