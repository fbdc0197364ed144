"""Checkpoints that a factory loads: headers are read, and the real call is the oracle."""

from __future__ import annotations

import json
import struct
from pathlib import Path

import pytest
import safetensors
import torch
from safetensors.torch import load_file, load_model, save_file
from torch import nn

import fakexport as fe
from fakexport.emulation.fake import build
from fakexport.emulation.history import DataReadError, constant_value


def mlp() -> nn.Module:
    return nn.Sequential(nn.Linear(3, 4), nn.Linear(4, 2, dtype=torch.bfloat16))


@pytest.fixture
def path(tmp_path: Path) -> Path:
    save_file(mlp().state_dict(), tmp_path / "mlp.safetensors", {"format": "pt"})
    return tmp_path / "mlp.safetensors"


def copied(path: Path) -> nn.Module:
    module = mlp()
    module.load_state_dict(load_file(path))
    return module


def assigned(path: Path) -> nn.Module:
    module = mlp()
    module.load_state_dict(load_file(path), assign=True)
    return module


def loaded_as_a_model(path: Path) -> nn.Module:
    module = mlp()
    assert load_model(module, path) == (set(), [])
    return module


def opened(path: Path) -> nn.Module:
    module = mlp()
    with safetensors.safe_open(path, "pt") as file:
        assert file.metadata() == {"format": "pt"}
        assert file.get_slice("0.weight").get_shape() == [4, 3]
        assert file.get_slice("0.weight")[:2].shape == (2, 3)
        module.load_state_dict({name: file.get_tensor(name) for name in file.keys()})  # noqa: SIM118
    return module


# What safetensors falls back to, to tell which weights of a model share memory.
@pytest.mark.filterwarnings("ignore:TypedStorage is deprecated:UserWarning")
@pytest.mark.parametrize("load", [copied, assigned, loaded_as_a_model, opened])
@pytest.mark.parametrize("target", ["cpu", "H100"])
def test_a_file_is_loaded_as_for_real_and_gives_fakes(path, load, target):
    real = load(path)

    with fe.emulate(target):
        module = build(lambda: load(path)).module

    facts = {name: (p.shape, p.dtype, p.requires_grad) for name, p in real.named_parameters()}
    assert {name: (p.shape, p.dtype, p.requires_grad) for name, p in module.named_parameters()} == facts
    assert all(fe.is_fake(parameter) for parameter in module.parameters())
    assert load_file(path)["0.weight"].sum() != 0  # real again
    assert type(load_file(path)["0.weight"]) is torch.Tensor


def test_weights_of_a_terabyte_are_not_read(tmp_path):
    """The file is a hole behind its header: nothing could hold it."""
    header = json.dumps({"w": {"dtype": "F32", "shape": [2**19, 2**19], "data_offsets": [0, 2**40]}}).encode()
    with (tmp_path / "large.safetensors").open("wb") as file:
        file.write(struct.pack("<Q", len(header)) + header)
        file.truncate(8 + len(header) + 2**40)

    with fe.fake_mode():
        weight = load_file(tmp_path / "large.safetensors")["w"]

    assert weight.shape == (2**19, 2**19)


def test_a_value_that_a_constructor_reads_of_a_checkpoint_is_not_invented(tmp_path):
    save_file({"scale": torch.tensor(3.0)}, tmp_path / "scale.safetensors")
    torch.save({"scale": torch.tensor(3.0)}, tmp_path / "scale.pt")

    with fe.fake_mode():
        for loaded in (load_file(tmp_path / "scale.safetensors"), torch.load(tmp_path / "scale.pt")):
            for read in (lambda t: t.item(), lambda t: (t + 1).tolist(), bool):
                with pytest.raises(DataReadError):
                    read(loaded["scale"])
        scale = load_file(tmp_path / "scale.safetensors")["scale"]
        with pytest.raises(DataReadError, match="scale of a checkpoint, whose data was not read"):
            constant_value(scale)


def test_a_checkpoint_that_does_not_fit_fails_as_for_real(path):
    def factory():
        module = nn.Sequential(nn.Linear(3, 5), nn.Linear(5, 2))
        module.load_state_dict(load_file(path))
        return module

    with pytest.raises(RuntimeError) as real:
        factory()
    before = safetensors.safe_open, safetensors.torch.safe_open
    with pytest.raises(RuntimeError) as fake:
        build(factory)

    assert str(fake.value) == str(real.value)
    assert (safetensors.safe_open, safetensors.torch.safe_open) == before
