"""A checkpoint of the same shapes, whose model has other settings, is not bound without a warning."""

from __future__ import annotations

import json
import warnings

import pytest

import fakexport as fe
from fakexport.archive.weights import WeightsWarning
from fakexport.cli import main
from fakexport.files.documents import differing_settings, flat_settings

transformers = pytest.importorskip("transformers")

SETTINGS = {
    "vocab_size": 64,
    "hidden_size": 32,
    "intermediate_size": 48,
    "num_hidden_layers": 1,
    "num_attention_heads": 4,
    "architectures": ["LlamaForCausalLM"],
}


def nested(levels):
    return {"a": nested(levels - 1)} if levels else {}


@pytest.fixture(scope="module")
def archive(tmp_path_factory):
    """The folder of a published model, with an archive of it."""
    folder = tmp_path_factory.mktemp("model")
    model = transformers.LlamaForCausalLM(transformers.LlamaConfig(**SETTINGS))
    model.save_pretrained(folder)
    fe.save(fe.export(f"hf:{folder}"), folder / "model.pt2", root=folder)
    return folder


@pytest.fixture
def checkpoint(archive, tmp_path):
    """The same weights, next to a config.json that the test changes."""
    (tmp_path / "model.safetensors").write_bytes((archive / "model.safetensors").read_bytes())

    def changed(**settings):
        config = json.loads((archive / "config.json").read_text())
        (tmp_path / "config.json").write_text(json.dumps({**config, **settings}))
        return tmp_path

    return changed


def test_other_settings_are_named_when_weights_are_bound_or_verified(archive, checkpoint, capsys):
    folder = checkpoint(rms_norm_eps=0.1, use_cache=False)
    differs = "rms_norm_eps is 1e-06, but 0.1 in config.json"
    told = f"{folder}.* may belong to a different model than the exported one: {differs}$"

    with pytest.warns(WeightsWarning, match=told):
        fe.bind(archive / "model.pt2", folder)
    with pytest.warns(WeightsWarning, match=told):
        fe.verify_weights(archive / "model.pt2", folder)
    with pytest.warns(WeightsWarning, match=told):
        fe.bind(fe.export(f"hf:{archive}"), folder / "model.safetensors")

    assert main(["verify-weights", str(archive / "model.pt2"), str(folder)]) == 0
    assert differs in capsys.readouterr().err


def test_its_own_checkpoint_has_the_same_settings(archive, checkpoint):
    with warnings.catch_warnings():
        warnings.simplefilter("error", WeightsWarning)
        for folder in (archive, checkpoint(use_cache=False, attention_dropout=0.5)):
            fe.bind(archive / "model.pt2", folder)


def test_the_settings_change_no_program(archive, tmp_path):
    """Two archives of the same program are equal, whichever config they come from."""
    (tmp_path / "config.json").write_text(
        json.dumps({**json.loads((archive / "config.json").read_text()), "unknown_to_llama": 1})
    )
    fe.save(fe.export(f"hf:{tmp_path}"), tmp_path / "other.pt2", root=tmp_path)

    assert fe.diff(fe.load(archive / "model.pt2"), fe.load(tmp_path / "other.pt2")).is_identical


@pytest.mark.parametrize(
    ("config", "found"),
    [
        ({"rope_theta": 1e4, "rope_scaling": None}, ()),
        ({"rope_theta": 10000}, ()),
        ({"rope_theta": 5e5}, ("rope_theta is 10000.0, but 500000.0 in config.json",)),
        ({"rope_parameters": {"rope_theta": 5e5}}, ("rope_theta is 10000.0, but 500000.0 in config.json",)),
        (
            {"rope_scaling": {"factor": 8.0}},
            ('rope_scaling is null, but {"factor": 8.0} in config.json',),
        ),
        ({"a": {"rope_theta": 1.0}, "b": {"rope_theta": 2.0}}, ()),
        ({"rope_theta": 1e4, "limit": [0.0, {"__float__": "Infinity"}]}, ()),
        ({"limit": [0.0, 1.0]}, ("limit is [0.0, Infinity], but [0.0, 1.0] in config.json",)),
        ([1], ("config.json cannot be read",)),
        (nested(21), ("config.json cannot be read",)),
    ],
)
def test_which_settings_differ(config, found, tmp_path):
    (tmp_path / "config.json").write_text(json.dumps(config))
    exported = flat_settings(
        {"rope_theta": 1e4, "rope_scaling": None, "hidden_dropout": 0.1, "limit": [0.0, float("inf")]}
    )

    assert differing_settings(exported, tmp_path) == found
    assert differing_settings(exported, None) == ()
