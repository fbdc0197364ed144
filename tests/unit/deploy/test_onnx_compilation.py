"""A program as an ONNX file gives what the model gives, whatever its inputs, outputs and weights are."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import torch
from torch import nn
from torch.export import Dim

onnx = pytest.importorskip("onnx")
pytest.importorskip("onnxscript")
pytest.importorskip("onnxruntime")
pytestmark = pytest.mark.usefixtures("torchlib_read_once")

import fakexport as fe  # noqa: E402
from fakexport.deploy import DeployError  # noqa: E402
from fakexport.deploy.onnx import compile_onnx, open_onnx  # noqa: E402


def saved(program: Any, folder: Path) -> Any:
    """The program as another process would load it."""
    fe.save(program, folder / "saved.pt2")
    return fe.load(folder / "saved.pt2")


def compiled(module: nn.Module, args: tuple[Any, ...], folder: Path, **options: Any) -> Any:
    """The module as an ONNX file with the weights inside, opened; `options` are those of `export`."""
    program = fe.export(lambda: module, args, **options)
    bound = fe.bind(program, dict(module.state_dict()))
    compile_onnx(bound, folder / "m.onnx")
    return open_onnx(folder / "m.onnx")


class Mlp(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.up, self.down = nn.Linear(8, 16), nn.Linear(16, 8)
        self.register_buffer("shift", torch.arange(8.0), persistent=False)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.down(self.up(x).relu()) + self.shift


@pytest.fixture(scope="module")
def mlp() -> Any:
    """The model, its weight-less program, and its bound one."""
    torch.manual_seed(0)
    model = Mlp().eval()
    batch = {0: Dim("batch", max=64)}
    program = fe.export(Mlp, (torch.zeros(3, 8),), dynamic_shapes=(batch,))
    return model, program, fe.bind(program, dict(model.state_dict()))


@pytest.fixture(scope="module")
def files(mlp: Any, tmp_path_factory: pytest.TempPathFactory) -> Any:
    """The model with its weights inside and beside, and, from a loaded program, without."""
    _, program, bound = mlp
    folders = {name: tmp_path_factory.mktemp(name) for name in ("inside", "beside", "unbound")}
    return {
        "inside": compile_onnx(bound, folders["inside"] / "m.onnx"),
        "beside": compile_onnx(bound, folders["beside"] / "m.onnx", weights="beside"),
        "unbound": compile_onnx(saved(program, folders["unbound"]), folders["unbound"] / "m.onnx"),
    }


@pytest.mark.slow
def test_an_mlp_gives_what_the_model_gives_wherever_its_weights_are(mlp: Any, files: Any) -> None:
    from safetensors.torch import load_file

    model, _, _ = mlp
    x = torch.randn(5, 8)
    checkpoint = dict(model.state_dict())

    names = {"inside": ["m.onnx"], "beside": ["m.onnx", "m.safetensors"], "unbound": ["m.onnx"]}
    for name, made in files.items():
        assert [path.name for path in made.files] == names[name]
        assert made.size_bytes == sum(path.stat().st_size for path in made.files)
        opened = open_onnx(made.path, checkpoint=checkpoint if name == "unbound" else None)
        torch.testing.assert_close(opened({"x": x}), {"output": model(x)}, rtol=0, atol=1e-6)
    assert files["unbound"].path.read_bytes() == files["beside"].path.read_bytes()
    torch.testing.assert_close(load_file(files["beside"].files[1]), checkpoint, rtol=0, atol=0)
    assert files["unbound"].notes == (
        "the file has no weights; they will be in m.safetensors next to it once they are bound",
    )


@pytest.mark.slow
def test_the_file_names_dynamic_sizes_and_no_folder_of_this_machine(files: Any) -> None:
    path = files["beside"].path
    graph = onnx.load_model(path, load_external_data=False).graph
    content = path.read_bytes()

    (size,) = {value.type.tensor_type.shape.dim[0].dim_param for value in (*graph.input, *graph.output)}
    assert size == str(open_onnx(path).signature.inputs[0].shape[0])
    assert b"torch/nn/modules/linear.py" in content
    assert str(Path(torch.__file__).parents[1]).encode() not in content
    assert str(Path(__file__).parent).encode() not in content


class Outputs(nn.Module):
    """Outputs that graphs of ONNX have no place for as they are."""

    def __init__(self) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.randn(3))

    def forward(self, x: torch.Tensor, flags: torch.Tensor) -> dict[str, Any]:
        y = x * self.weight
        return {
            "x": y,  # the name of an input
            "weight": y,  # of a weight, and the same value again
            "mul": x + 1,  # of another node
            "none": None,
            "pair": (flags.logical_not(), x.argmax(dim=-1)),
            "size": x.shape[0],
            "given": x,
            "own": self.weight,
        }


def test_outputs_have_the_names_of_the_program(tmp_path: Path) -> None:
    module = Outputs().eval()
    batch = Dim("batch", max=8)
    dynamic = {"x": {0: batch}, "flags": {0: batch}}
    x, flags = torch.randn(4, 3), torch.tensor([True, False, True, True])

    found = compiled(module, (torch.zeros(2, 3), flags[:2]), tmp_path, dynamic_shapes=dynamic)(
        {"x": x, "flags": flags}
    )

    expected = module(x, flags)
    assert list(found) == ["x", "weight", "mul", "pair.0", "pair.1", "given", "own"]
    for name, value in found.items():
        key, _, index = name.partition(".")
        torch.testing.assert_close(value, expected[key][int(index)] if index else expected[key])


class Kinds(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.register_buffer("table", torch.arange(12).reshape(3, 4).t())
        self.register_buffer("halves", torch.full((2,), 0.5, dtype=torch.float16))
        self.register_buffer("turns", torch.polar(torch.ones(4), torch.arange(4.0)))

    def forward(self, index: torch.Tensor, number: torch.Tensor, mask: torch.Tensor) -> tuple[Any, ...]:
        turned = torch.view_as_real(torch.view_as_complex(torch.stack((number, number), -1)) * self.turns)
        return self.table[index], number.half()[:2] * self.halves, mask & (number > 0), turned, number.sum()


@pytest.mark.slow
def test_dtypes_and_strides_are_kept(tmp_path: Path) -> None:
    module = Kinds()
    inputs = {"index": torch.tensor([2, 0]), "number": torch.randn(4), "mask": torch.ones(4).bool()}

    found = compiled(module, tuple(inputs.values()), tmp_path)(inputs)

    for value, expected in zip(found.values(), module(**inputs), strict=True):
        torch.testing.assert_close(value, expected, rtol=0, atol=1e-6)


class Bfloat16(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.randn(4, 4, dtype=torch.bfloat16))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return (x.float() @ self.weight.float()).bfloat16()


def test_bfloat16_goes_in_and_out_bit_by_bit(tmp_path: Path) -> None:
    module = Bfloat16()
    x = torch.randn(2, 4, dtype=torch.bfloat16)

    found = compiled(module, (x,), tmp_path)({"x": x})["output"]

    assert found.dtype is torch.bfloat16
    torch.testing.assert_close(found, module(x).detach(), rtol=2**-7, atol=0)


class Bend(nn.Module):
    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return x.erf()


def test_an_operator_without_a_kernel_in_onnx_runtime_is_named(tmp_path: Path) -> None:
    with pytest.raises(DeployError, match=r"m\.onnx.*no CPU kernel for an operator.*Erf"):
        compiled(Bend(), (torch.zeros(2, dtype=torch.bfloat16),), tmp_path)


class Tied(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.embed = nn.Embedding(5, 4)
        self.head = nn.Linear(4, 5, bias=False)
        self.head.weight = self.embed.weight

    def forward(self, ids: torch.Tensor) -> torch.Tensor:
        return self.head(self.embed(ids))


def test_tied_weights_are_stored_once_and_bound_from_either_name(tmp_path: Path) -> None:
    from safetensors.torch import load_file

    module, ids = Tied(), torch.tensor([[1, 4]])
    program = fe.export(Tied, (ids,))
    compile_onnx(fe.bind(program, dict(module.state_dict())), tmp_path / "m.onnx", weights="beside")
    expected = {"output": module(ids)}

    torch.testing.assert_close(open_onnx(tmp_path / "m.onnx")({"ids": ids}), expected)
    assert list(load_file(tmp_path / "m.safetensors")) == ["embed.weight"]
    for name in ("embed.weight", "head.weight"):
        artifact = open_onnx(tmp_path / "m.onnx", checkpoint={name: module.embed.weight.detach()})
        torch.testing.assert_close(artifact({"ids": ids}), expected)


@pytest.mark.slow
def test_gpt2_with_dynamic_sizes_and_padding(tmp_path: Path) -> None:
    transformers = pytest.importorskip("transformers")
    config = transformers.GPT2Config(
        n_layer=2, n_embd=32, n_head=4, vocab_size=100, n_positions=64, use_cache=False
    )
    model = transformers.GPT2LMHeadModel(config).eval()
    sizes = {0: Dim("batch", max=16), 1: Dim("sequence", max=32)}
    example = torch.zeros(2, 8, dtype=torch.int64)
    inputs = {"input_ids": example, "attention_mask": example + 1}
    ids = torch.randint(0, 100, (3, 11))
    mask = torch.ones_like(ids)
    mask[1, :4] = 0
    dynamic = dict.fromkeys(inputs, sizes)
    program = fe.export(
        lambda: transformers.GPT2LMHeadModel(config).eval(), (), inputs, dynamic_shapes=dynamic
    )
    compile_onnx(program, tmp_path / "m.onnx")

    artifact = open_onnx(tmp_path / "m.onnx", checkpoint=dict(model.state_dict()))
    found = artifact({"input_ids": ids, "attention_mask": mask})

    with torch.no_grad():
        expected = model(input_ids=ids, attention_mask=mask).logits
    torch.testing.assert_close(found, {"logits": expected}, rtol=0, atol=2e-6)


class Branches(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.one, self.other = nn.Linear(3, 3), nn.Linear(3, 3)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return torch.cond(x.sum() > 0, lambda x: self.one(x), lambda x: self.other(x), (x,))


@pytest.mark.slow
def test_both_branches_of_a_condition_are_in_the_file(tmp_path: Path) -> None:
    module = Branches()

    artifact = compiled(module, (torch.ones(2, 3),), tmp_path)

    for x in (torch.ones(2, 3), -torch.ones(2, 3)):
        torch.testing.assert_close(artifact({"x": x}), {"output": module(x)})


def test_a_program_of_another_device_is_taken_as_one_of_the_cpu(tmp_path: Path) -> None:
    program = fe.export(
        lambda: (Mlp(), (torch.zeros(3, 8, device="cuda:0"),)), target="H100", device_map="cuda:0"
    )
    module = Mlp()
    x = torch.randn(3, 8)

    made = compile_onnx(program, tmp_path / "m.onnx")

    assert made.notes[0] == "ONNX has no devices: the program for cuda:0 was converted as if for the CPU"
    found = open_onnx(made.path, checkpoint=dict(module.state_dict()))({"x": x})
    torch.testing.assert_close(found, {"output": module(x)}, rtol=0, atol=1e-6)


class Noisy(nn.Module):
    def forward(self, x: torch.Tensor) -> torch.Tensor:
        count = (x > 0).sum().item()
        torch._check(count >= 2)
        return nn.functional.dropout(x, 0.5, True) + torch.rand_like(x) + torch.zeros(count).sum()


def test_what_is_not_as_in_the_program_is_noted(tmp_path: Path) -> None:
    program = fe.export(Noisy, (torch.ones(3),))

    made = compile_onnx(program, tmp_path / "m.onnx")

    assertions, draws = made.notes
    assert assertions.startswith("ONNX has no assertions: ")
    assert f"{Path(__file__).name}:" in assertions
    assert draws.startswith("the runtime that executes the file draws its own random numbers: ")


def test_weights_that_are_too_many_for_an_onnx_file_are_beside_it(
    mlp: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    model, _, bound = mlp
    monkeypatch.setattr("fakexport.deploy.onnx.compilation.LARGEST_BYTES", 1000)

    made = compile_onnx(bound, tmp_path / "m.onnx", weights="inside")

    assert made.notes == ("the weights exceed the size limit of an ONNX file: they are in m.safetensors",)
    x = torch.randn(2, 8)
    torch.testing.assert_close(open_onnx(made.path)({"x": x}), {"output": model(x)}, rtol=0, atol=1e-6)


def test_a_checkpoint_beside_the_output_is_not_overwritten(mlp: Any, tmp_path: Path) -> None:
    from safetensors.torch import save_file

    _, _, bound = mlp
    save_file({"other": torch.zeros(2)}, tmp_path / "m.safetensors")
    before = (tmp_path / "m.safetensors").read_bytes()

    with pytest.raises(DeployError, match="already exists with different content"):
        compile_onnx(bound, tmp_path / "m.onnx", weights="beside")

    assert {path.name: path.read_bytes() for path in tmp_path.iterdir()} == {"m.safetensors": before}


def test_the_name_of_the_file_must_say_what_it_is(mlp: Any, tmp_path: Path) -> None:
    with pytest.raises(ValueError, match=r"must end in \.onnx"):
        compile_onnx(mlp[2], tmp_path / "model.bin")


class Attention(nn.Module):
    def forward(self, x: torch.Tensor, mask: torch.Tensor) -> torch.Tensor:
        return nn.functional.scaled_dot_product_attention(x, x, x, attn_mask=mask)


class OwnAttention(nn.Module):
    def forward(self, x: torch.Tensor, mask: torch.Tensor) -> torch.Tensor:
        return (x @ x.mT + mask).softmax(-1) @ x


def as_numbers(mask: torch.Tensor, dtype: torch.dtype) -> torch.Tensor:
    return torch.zeros(mask.shape, dtype=dtype).masked_fill(~mask, -torch.inf)


@pytest.mark.parametrize("is_boolean", [True, False])
@pytest.mark.parametrize("dtype", [torch.float32, pytest.param(torch.float16, marks=pytest.mark.slow)])
def test_a_token_that_sees_nothing_gets_nothing_and_nan_stays(
    dtype: torch.dtype, is_boolean: bool, tmp_path: Path
) -> None:
    """A score that is NaN is not one that is hidden."""
    x = torch.randn(2, 2, 5, 4).to(dtype)
    mask = torch.ones(2, 1, 5, 5).tril().bool()
    mask[1, ..., :3] = False
    mask = mask if is_boolean else as_numbers(mask, dtype)
    artifact = compiled(Attention(), (x, mask), tmp_path)

    found = artifact({"x": x, "mask": mask})["output"]

    assert not found[1, :, :3].any()
    torch.testing.assert_close(
        found, Attention()(x, mask), rtol=0, atol=2e-3 if dtype.itemsize == 2 else 1e-6
    )
    x[0, 0, 1] = torch.nan
    found = artifact({"x": x, "mask": mask})["output"]
    assert torch.equal(found.isnan(), Attention()(x, mask).isnan())


@pytest.mark.slow
def test_a_softmax_of_the_models_own_stays_as_it_is(tmp_path: Path) -> None:
    x = torch.randn(1, 1, 3, 4)
    mask = as_numbers(torch.tensor([[True, False, True], [False] * 3, [True] * 3]), x.dtype)

    found = compiled(OwnAttention(), (x, mask), tmp_path)({"x": x, "mask": mask})["output"]

    assert found[0, 0, 1].isnan().all()
    torch.testing.assert_close(found, OwnAttention()(x, mask), equal_nan=True)


class BiasedAttention(nn.Module):
    """As T5: the layout that attention returns depends on whether its mask requires gradients."""

    def __init__(self) -> None:
        super().__init__()
        self.bias = nn.Embedding(5, 2)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        heads = x.view(3, 5, 2, 4).transpose(1, 2)
        places = torch.arange(5)
        bias = self.bias((places[:, None] - places).abs()).permute(2, 0, 1)[None]
        found = nn.functional.scaled_dot_product_attention(heads, heads, heads, attn_mask=bias)
        return found.transpose(1, 2).contiguous().reshape(3, 5, 8)


def test_a_mask_that_is_a_parameter_does_not_change_the_layout_of_attention(tmp_path: Path) -> None:
    model, x = BiasedAttention(), torch.randn(3, 5, 8)

    found = compiled(model, (torch.zeros_like(x),), tmp_path)({"x": x})

    torch.testing.assert_close(next(iter(found.values())), model(x))
