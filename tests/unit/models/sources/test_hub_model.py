"""`hf:org/name`: the config, the class, the dtype and the quantization of a repository on the hub."""

from __future__ import annotations

import json

import pytest
import torch

from fakexport.archive import verify_weights
from fakexport.archive.weights import CheckpointError, open_checkpoint
from fakexport.models.sources import SourceError, Workload, resolve
from tests.hub_layouts import layouts
from tests.hub_server import COMMIT, local_hub

LAYOUTS = dict(layouts())


@pytest.fixture(scope="module")
def hub(tmp_path_factory):
    """A hub with every layout."""
    with local_hub(tmp_path_factory.mktemp("cache")) as served:
        for name, layout in LAYOUTS.items():
            prefix = f"{layout.folder}/" if layout.folder else ""
            files = {prefix + file: content for file, content in layout.files.items()}
            if layout.config is not None:
                files[f"{prefix}config.json"] = json.dumps(layout.config).encode()
            served.add(repository(name), files=files)
        yield served


def repository(name: str) -> str:
    return f"org/{name.replace(' ', '-').replace(',', '').replace('.', '')}"


def spec_of(name: str) -> str:
    folder = LAYOUTS[name].folder
    return f"hf:{repository(name)}" + (f"/{folder}" if folder else "")


@pytest.mark.parametrize("name", [name for name, layout in LAYOUTS.items() if layout.class_name])
def test_a_repository_is_the_model_that_it_describes(name, hub):
    layout = LAYOUTS[name]

    source = resolve(spec_of(name))
    with torch.device("meta"):
        module = source.factory()

    assert type(module).__name__ == layout.class_name
    assert (source.quantization and source.quantization.method) == layout.quantization
    assert source.dtype == layout.dtype
    assert source.assumptions[0] == f"{spec_of(name)} is at commit {COMMIT} on the hub"


@pytest.mark.parametrize("name", [name for name, layout in LAYOUTS.items() if layout.refusal])
def test_a_repository_that_is_no_model_of_transformers_is_refused_with_the_reason(name, hub):
    with pytest.raises(SourceError) as caught:
        resolve(spec_of(name))

    assert LAYOUTS[name].refusal in str(caught.value)
    assert "\n" not in str(caught.value)


@pytest.mark.parametrize("name", [name for name, layout in LAYOUTS.items() if layout.codes is not None])
def test_the_headers_of_a_repository_are_compared_with_its_model(name, hub):
    report = verify_weights(spec_of(name), spec_of(name))

    assert {finding.code for finding in report.findings} == LAYOUTS[name].codes, str(report)
    assert report.checkpoint == f"{spec_of(name)}@{COMMIT}"


@pytest.mark.parametrize("name", [name for name, layout in LAYOUTS.items() if layout.weights_refusal])
def test_weights_that_cannot_be_read_are_refused_with_the_reason(name, hub):
    with pytest.raises(CheckpointError) as caught:
        open_checkpoint(spec_of(name))

    assert LAYOUTS[name].weights_refusal in str(caught.value)
    assert "\n" not in str(caught.value)


def test_there_are_twenty_layouts():
    assert len(LAYOUTS) >= 20


@pytest.mark.parametrize(
    ("name", "note"),
    [
        ("no dtype", "the config specifies no dtype: using bfloat16 like the weights"),
        ("another dtype than its config", "the config specifies float32, but the weights are bfloat16"),
        (
            "fp8 with code of its own",
            "the repository's own code (auto_map) was not run; using the class in ",
        ),
        ("only .bin", "the dtypes of the weights are unknown: hf:org/only-bin has no safetensors files, "),
    ],
)
def test_what_a_repository_leaves_open_is_said(name, note, hub):
    assert any(said.startswith(note) for said in resolve(spec_of(name)).assumptions)


def test_a_shard_outside_of_the_repository_is_not_asked_for(hub):
    index = {"weight_map": {"model.norm.weight": "../../other/model.safetensors"}}
    files = {"model.safetensors.index.json": json.dumps(index).encode()}
    hub.add("org/outside", LAYOUTS["single"].config, files=files)

    source = resolve("hf:org/outside")

    assert "is not a valid shard in the folder of the index" in str(source.assumptions)
    assert not any("other/model" in request for request in hub.requests)


def test_a_class_that_the_user_names_replaces_one_that_is_not_in_transformers(hub):
    source = resolve(f"{spec_of('a class of its own')}:LlamaForCausalLM")

    assert "the repository's own code (auto_map) was not run" in source.assumptions[1]


def test_the_generation_config_is_read_where_tokens_are_generated(hub):
    hub.add(
        "org/generating",
        LAYOUTS["single"].config,
        files={**LAYOUTS["single"].files, "generation_config.json": b'{"eos_token_id": [7, 9]}'},
    )

    module = resolve("hf:org/generating", workload=Workload("prefill", is_generated=True)).factory()

    assert module.generation_config.eos_token_id == [7, 9]
