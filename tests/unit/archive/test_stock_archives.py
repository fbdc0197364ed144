"""Archives of `torch.export.save`: read by our own codec where nothing is pickled, by torch on trust."""

from __future__ import annotations

import io
import json
import zipfile
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import nn
from torch._export.serde import serialize as stock
from torch.export import Dim, ExportedProgram

import fakexport as fe
from fakexport.archive import describe
from fakexport.archive.loading import load_archive
from fakexport.archive.method_records import WEIGHTS_CONFIG, MethodRecords
from fakexport.archive.methods import methods_of
from fakexport.archive.stock_archive import NO_MANIFEST
from fakexport.container import ArchiveError
from fakexport.container.contents import FRAME_RECORDS
from fakexport.container.reader import read_container
from fakexport.container.writer import write_container
from fakexport.program import UnboundProgram
from tests.same_nodes import nodes_equal
from tests.unit.archive.test_save_and_load import Tied


class Views(nn.Module):
    """Buffers that look at parts of one memory, one of no elements, and an unused parameter."""

    def __init__(self) -> None:
        super().__init__()
        whole = torch.arange(12.0)
        self.register_buffer("head", whole[:6].view(2, 3))
        self.register_buffer("tail", whole[6:].view(3, 2).t())
        self.register_buffer("none", torch.zeros(0, 3))
        self.register_buffer("shift", whole[3:6], persistent=False)
        self.unused = nn.Parameter(torch.ones(2))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return x * self.head + self.tail + self.shift + self.none.sum()


class Logits(nn.Module):
    def __init__(self, model: nn.Module) -> None:
        super().__init__()
        self.model = model

    def forward(self, input_ids: torch.Tensor) -> torch.Tensor:
        return self.model(input_ids=input_ids, use_cache=False).logits


def language_model(kind: str) -> nn.Module:
    transformers = pytest.importorskip("transformers")
    if kind == "gpt2":
        config = transformers.GPT2Config(vocab_size=50, n_positions=32, n_embd=16, n_layer=2, n_head=2)
        return Logits(transformers.GPT2LMHeadModel(config).eval())
    sizes = {"vocab_size": 50, "hidden_size": 16, "intermediate_size": 24, "num_hidden_layers": 2}
    heads = {"num_attention_heads": 2, "num_key_value_heads": 1}
    return Logits(transformers.LlamaForCausalLM(transformers.LlamaConfig(**sizes, **heads)).eval())


IDS = torch.arange(5)
MODELS: dict[str, tuple[Callable[[], nn.Module], torch.Tensor, Any]] = {
    "mlp": (lambda: nn.Sequential(nn.Linear(4, 8), nn.ReLU(), nn.Linear(8, 2)), torch.randn(3, 4), None),
    "tied": (lambda: Tied().eval(), IDS, ({0: Dim("rows", min=2, max=64)},)),
    "views": (Views, torch.randn(2, 3), None),
    "gpt2": (lambda: language_model("gpt2"), IDS[None], ({1: Dim("length", min=2, max=32)},)),
    "llama": (lambda: language_model("llama"), IDS[None], ({1: Dim("length", min=2, max=32)},)),
}


def saved(program: ExportedProgram, path: Path) -> Path:
    """As a user would save it who does not want to ship inputs: nothing in it is pickled."""
    program.example_inputs = None
    torch.export.save(program, path)
    return path


@pytest.mark.filterwarnings("ignore:No complete tensor found")  # Torch, about views.
@pytest.mark.parametrize(
    "name",
    [pytest.param(name, marks=pytest.mark.slow if name in ("llama", "gpt2") else ()) for name in MODELS],
)
def test_a_real_program_is_the_one_that_torch_loads(name: str, tmp_path: Path) -> None:
    make, example, shapes = MODELS[name]
    torch.manual_seed(0)
    program = torch.export.export(make(), (example,), dynamic_shapes=shapes)
    path = saved(program, tmp_path / "stock.pt2")

    loaded = load_archive(path)

    by_torch = torch.export.load(path)
    assert nodes_equal(loaded.program, by_torch) == ()
    assert loaded.notes == (NO_MANIFEST,)
    assert list(loaded.program.state_dict) == list(by_torch.state_dict)
    longer = example if shapes is None else torch.cat([example, example], dim=-1)
    for inputs in (example, longer):
        assert torch.equal(loaded.program.module()(inputs), by_torch.module()(inputs))
    for tensor, twin in zip(loaded.program.state_dict.values(), by_torch.state_dict.values(), strict=True):
        assert torch.equal(tensor, twin)
        assert (type(tensor), tensor.requires_grad, tensor.stride()) == (
            type(twin),
            twin.requires_grad,
            twin.stride(),
        )


def test_tied_weights_are_one_tensor(tmp_path: Path) -> None:
    program = torch.export.export(Tied().eval(), (IDS,))
    loaded = fe.load(saved(program, tmp_path / "stock.pt2"))

    assert loaded.state_dict["head.weight"] is loaded.state_dict["embed.weight"]


@pytest.mark.parametrize(
    ("name", "topology"),
    [
        ("tied", "cpu"),
        ("tied", "H100"),
        ("gpt2", "H100"),
        pytest.param("gpt2", "cpu", marks=pytest.mark.slow),
        pytest.param("llama", "cpu", marks=pytest.mark.slow),
        pytest.param("llama", "H100", marks=pytest.mark.slow),
    ],
)
def test_a_fake_program_has_fakes_and_no_zeros(name: str, topology: str, tmp_path: Path) -> None:
    make, example, _ = MODELS[name]
    program = fe.export(make, (example,), target=topology)
    path = saved(program, tmp_path / "fake.pt2")

    loaded = load_archive(path)

    assert nodes_equal(loaded.program, program) == ()
    assert all(map(fe.is_fake, loaded.program.state_dict.values()))
    assert "they are fake here, and zeros when torch loads the file" in loaded.notes[1]
    with pytest.raises(UnboundProgram):
        loaded.program.module()


@pytest.mark.slow
def test_a_fake_program_is_bound_like_one_of_ours(tmp_path: Path) -> None:
    make, example, _ = MODELS["llama"]
    torch.manual_seed(1)
    eager = make()
    path = saved(fe.export(make, (example,)), tmp_path / "fake.pt2")

    bound = fe.bind(path, dict(eager.state_dict()))

    assert torch.equal(bound.module()(example), eager(example))


@pytest.fixture
def pickled(tmp_path: Path) -> Path:
    """What `torch.export.save` writes by default: with the example inputs."""
    path = tmp_path / "pickled.pt2"
    torch.export.save(torch.export.export(nn.Linear(4, 2), (torch.ones(3, 4),)), path)
    return path


def pickle_a_weight(path: Path, method: str, state: Mapping[str, torch.Tensor]) -> None:
    """Makes the first weight of a program a record that torch unpickles."""
    with read_container(path, trust=True) as container:
        kept = {name: container.record(name) for name in container.names if name not in FRAME_RECORDS}
    config = json.loads(kept[MethodRecords(method).weights])
    name, entry = next(iter(config["config"].items()))
    content = io.BytesIO()
    torch.save(nn.Parameter(state[name].detach()), content)
    entry["use_pickle"], entry["path_name"] = True, "weight_999"
    kept[MethodRecords(method).weights] = json.dumps(config).encode()
    write_container(path, {**kept, "data/weights/weight_999": content.getvalue()}, folder_name="model")


@pytest.mark.parametrize("trust", [False, True])
def test_pickled_example_inputs_are_not_read(pickled: Path, trust: bool, monkeypatch) -> None:
    by_torch = torch.export.load(pickled)
    monkeypatch.setattr(torch, "load", lambda *args, **kwargs: pytest.fail("it was unpickled"))
    monkeypatch.setattr(torch.export, "load", lambda *args, **kwargs: pytest.fail("torch read it"))

    loaded = load_archive(pickled, trust=trust)

    assert nodes_equal(loaded.program, by_torch) == ()
    assert not loaded.program.example_inputs[0][0].any()  # Not the ones of the file: zeros of the same size.
    assert torch.equal(loaded.program.state_dict["weight"], by_torch.state_dict["weight"])
    assert loaded.notes[-1] == "the example inputs are pickled and were not read"
    assert describe(pickled).notes == loaded.notes


def test_pickled_weights_need_trust(pickled: Path) -> None:
    by_torch = torch.export.load(pickled)
    pickle_a_weight(pickled, "model", by_torch.state_dict)
    with pytest.raises(ArchiveError, match="is a pickled payload, refused unless trusted") as no:
        fe.load(pickled)
    assert no.value.is_trust_missing

    trusted = load_archive(pickled, trust=True)

    assert nodes_equal(trusted.program, by_torch) == ()
    assert torch.equal(trusted.program.example_inputs[0][0], torch.ones(3, 4))
    assert torch.equal(trusted.program.state_dict["weight"], by_torch.state_dict["weight"])
    assert trusted.notes == ("trusted: torch read it, which can run code from the file",)


class Touch:
    """What an attacker would pickle."""

    def __init__(self, path: Path) -> None:
        self.path = path

    def __reduce__(self) -> tuple[Any, ...]:
        return Path.touch, (self.path,)


def test_nothing_pickled_is_run_but_by_torch_on_trust(pickled: Path, tmp_path: Path) -> None:
    mark = tmp_path / "it ran"
    with read_container(pickled, trust=True) as container:
        kept = {name: container.record(name) for name in container.names if name not in FRAME_RECORDS}
    content = io.BytesIO()
    torch.save(Touch(mark), content)
    kept["data/weights/weight_0"], kept["data/sample_inputs/model.pt"] = content.getvalue(), b""
    config = json.loads(kept[WEIGHTS_CONFIG])
    config["config"]["weight"]["use_pickle"] = True
    kept[WEIGHTS_CONFIG] = json.dumps(config).encode()
    write_container(pickled, kept, folder_name="model")

    describe(pickled, trust=True)
    fe.verify_weights(pickled, dict(nn.Linear(4, 2).state_dict()), trust=True)
    for read in (fe.load, describe):
        with pytest.raises(ArchiveError, match="`weight` is a pickled payload, refused unless"):
            read(pickled)
    assert not mark.exists()

    with pytest.raises(ArchiveError, match=r"torch\.export\.load cannot read it"):  # It gives no tensor.
        fe.load(pickled, trust=True)
    assert mark.exists()  # Torch ran it: that is what `trust` allows.


def test_trust_does_not_make_zeros_of_fake_weights(tmp_path: Path) -> None:
    program = fe.export(lambda: nn.Linear(4, 2), (torch.ones(3, 4),))
    program.example_inputs = ((torch.ones(3, 4),), {})
    torch.export.save(program, tmp_path / "fake.pt2")
    assert not torch.export.load(tmp_path / "fake.pt2").state_dict["weight"].any()  # torch does

    loaded = fe.load(tmp_path / "fake.pt2", trust=True)

    assert all(map(fe.is_fake, loaded.state_dict.values()))


def test_trust_does_not_open_a_damaged_file(pickled: Path) -> None:
    with zipfile.ZipFile(pickled) as archive:
        place = archive.getinfo("pickled/data/weights/weight_0").header_offset
    content = bytearray(pickled.read_bytes())
    content[content.index(b"ZZ\0", place) + 40] ^= 1
    pickled.write_bytes(content)

    with pytest.raises(ArchiveError, match="damaged"):
        fe.load(pickled, trust=True)


def legacy(path: Path, program: ExportedProgram) -> Path:
    """The layout of torch 2.7 and before."""
    artifact = stock.serialize(program)
    with zipfile.ZipFile(path, "w") as archive:
        archive.writestr("version", "8.8")
        archive.writestr("serialized_exported_program.json", artifact.exported_program)
        archive.writestr("serialized_state_dict.pt", artifact.state_dict)
        archive.writestr("serialized_constants.pt", artifact.constants)
        archive.writestr("serialized_example_inputs.pt", artifact.example_inputs)
    return path


def test_the_layout_before_torch_2_8_needs_trust(tmp_path: Path) -> None:
    program = torch.export.export(nn.Linear(4, 2), (torch.ones(3, 4),))
    path = legacy(tmp_path / "old.pt2", program)

    assert methods_of(path, trust=True) == ()
    with pytest.raises(ArchiveError, match="legacy layout, from before torch"):
        fe.load(path)
    assert nodes_equal(fe.load(path, trust=True), program) == ()


@pytest.mark.parametrize(
    ("change", "message"),
    [
        (
            lambda w: w.update(path_name="weight_7"),
            "path_name: the record 'data/weights/weight_7' is missing",
        ),
        (
            lambda w: w.update(path_name="../constants/x"),
            "is missing",
        ),
        (lambda w: w["tensor_meta"]["sizes"][0].update(as_int=1 << 40), "1 of 2 weights have no data"),
        (lambda w: w["tensor_meta"].update(storage_offset={"as_int": 1 << 63}), "a plain number"),
        (lambda w: w.update(tensor_meta=None), "tensor_meta: expected an object"),
        (lambda w: w["tensor_meta"].update(strides=[]), "tensor_meta: 2 sizes and 0 strides"),
        (lambda w: w["tensor_meta"].update(dtype=6), "weight: has a different shape or dtype in the graph"),
        (lambda w: w["tensor_meta"]["device"].update(type="cuda", index=0), "is on cuda:0, which is not on"),
    ],
)
def test_a_bent_config_is_refused_in_one_line(
    change: Callable[[dict[str, Any]], None], message: str, tmp_path: Path
) -> None:
    path = saved(torch.export.export(nn.Linear(4, 2), (torch.ones(3, 4),)), tmp_path / "stock.pt2")
    with read_container(path) as container:
        kept = {name: container.record(name) for name in container.names if name not in FRAME_RECORDS}
    document = json.loads(kept[WEIGHTS_CONFIG])
    change(document["config"]["weight"])
    kept[WEIGHTS_CONFIG] = json.dumps(document).encode()
    write_container(path, kept, folder_name="model")

    with pytest.raises(ArchiveError, match=message) as caught:
        fe.load(path)
    assert "\n" not in str(caught.value)


def test_a_program_of_another_name_is_named(tmp_path: Path) -> None:
    from torch.export.pt2_archive._package import package_pt2

    program = torch.export.export(nn.Linear(4, 2), (torch.ones(3, 4),))
    program.example_inputs = None
    package_pt2(str(tmp_path / "other.pt2"), exported_programs={"encoder": program})

    with pytest.raises(ArchiveError, match=r"is a bundle of the methods encoder: choose one"):
        fe.load(tmp_path / "other.pt2")
    assert fe.load(tmp_path / "other.pt2", method="encoder").module()(torch.ones(3, 4)).shape == (3, 2)
