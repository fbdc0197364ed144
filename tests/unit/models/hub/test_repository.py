"""Reading a repository of the hub: what is transferred, and what is wrong, in one line each."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
import torch
from huggingface_hub import constants
from safetensors.torch import save_file

from fakexport.archive import verify_weights
from fakexport.archive.weights import CheckpointError, open_checkpoint
from fakexport.models.hub import HubError, HubName, Repository, transfers_recorded
from fakexport.models.sources import SourceError, resolve
from tests.hub_layouts import config_of
from tests.hub_server import COMMIT, OLDER, TOKEN, Weights, local_hub, sharded

CONFIGS = Path(__file__).parents[4] / "examples" / "configs"
SMALL = {"hidden_size": 16, "intermediate_size": 16, "num_hidden_layers": 1, "num_attention_heads": 2}
LLAMA = config_of("LlamaForCausalLM", "llama", vocab_size=32, **SMALL)
ONE = Weights.of({"weight": ("F32", (4, 2)), "bias": ("F32", (4,))})


@pytest.fixture
def hub(tmp_path):
    with local_hub(tmp_path / "cache") as served:
        yield served


def message_of(spec: str) -> str:
    with pytest.raises(SourceError) as caught:
        resolve(spec)
    message = str(caught.value)
    assert "\n" not in message
    return message


def refusal_of(checkpoint: str) -> str:
    with pytest.raises(CheckpointError) as caught:
        open_checkpoint(checkpoint)
    message = str(caught.value)
    assert "\n" not in message
    return message


@pytest.mark.parametrize(
    ("text", "name"),
    [
        ("Qwen/Qwen2.5-7B", HubName("Qwen/Qwen2.5-7B")),
        ("Qwen/Qwen2.5-7B@v1.0", HubName("Qwen/Qwen2.5-7B", "v1.0")),
        ("org/name@refs/pr/1", HubName("org/name", "refs/pr/1")),
        ("org/name/text_encoder@main", HubName("org/name", "main", "text_encoder")),
        ("./org/name", None),
        ("/org/name", None),
        ("org/../name", None),
        ("org", None),
        ("org/name@", None),
        ("org/na me", None),
        ("org/name@../../x", None),
    ],
)
def test_a_name_of_the_hub_is_an_owner_and_a_name(text, name):
    assert HubName.parse(text) == name


def test_a_gated_repository_says_where_to_accept_its_conditions(hub, monkeypatch):
    hub.add("org/gated", LLAMA, is_gated=True)

    assert message_of("hf:org/gated") == (
        f"hf:org/gated: the repository is gated: accept its conditions at {hub.endpoint}/org/gated, then run "
        "`hf auth login` or set HF_TOKEN"
    )
    monkeypatch.setenv("HF_TOKEN", "hf_another")
    assert message_of("hf:org/gated").endswith("then use the token of an account that has access "
                                               "(`hf auth login`, HF_TOKEN)")  # fmt: skip


def test_the_token_of_the_user_opens_a_gated_repository_and_is_shown_to_the_hub_alone(hub, monkeypatch):
    hub.add("org/gated", LLAMA, is_gated=True, files={"model.safetensors": ONE})
    monkeypatch.setenv("HF_TOKEN", TOKEN)

    assert resolve("hf:org/gated").dtype == torch.bfloat16
    assert open_checkpoint("hf:org/gated").entries["weight"].shape == (4, 2)
    assert not hub.leaked_tokens


def test_a_repository_or_revision_that_is_not_there_is_named(hub):
    hub.add("org/there", LLAMA)

    assert message_of("hf:org/missing") == (
        f"hf:org/missing: no folder and no repository on {hub.endpoint} has this name, or the repository is "
        "private: check the name; for a private repository, run `hf auth login` or set HF_TOKEN"
    )
    assert message_of("hf:org/there@nope") == (
        f"hf:org/there@nope: the repository has no revision 'nope': use a branch, a tag or a commit of "
        f"{hub.endpoint}/org/there"
    )
    assert "Cannot have -- or .. in repo_id" in message_of("hf:org/a--b")


def test_a_revision_is_the_commit_that_it_is_now(hub):
    hub.add("org/two", LLAMA, revisions={"main": COMMIT, "v1": OLDER, "refs/pr/1": OLDER})

    for revision, commit in (("", COMMIT), ("@v1", OLDER), ("@refs/pr/1", OLDER), (f"@{OLDER}", OLDER)):
        said = resolve(f"hf:org/two{revision}").assumptions[0]
        assert said == f"hf:org/two{revision} is at commit {commit} on the hub"


def test_offline_mode_reads_the_cache_and_says_what_is_not_in_it(hub, monkeypatch):
    hub.add("org/seen", LLAMA, files={"model.safetensors": ONE})
    resolve("hf:org/seen")
    hub.requests.clear()
    monkeypatch.setattr(constants, "HF_HUB_OFFLINE", True)

    source = resolve("hf:org/seen")

    assert source.assumptions[0] == f"hf:org/seen is at commit {COMMIT} on the hub"
    assert "offline mode is on" in source.assumptions[1]
    assert message_of("hf:org/unseen") == (
        "hf:org/unseen: config.json is not in the cache, and offline mode is on: unset HF_HUB_OFFLINE, or "
        "run `hf download org/unseen config.json` on a machine that can reach the hub"
    )
    assert "offline mode is on" in refusal_of("hf:org/seen")
    assert hub.requests == []


def test_a_hub_that_cannot_be_reached_is_named(hub, monkeypatch):
    nowhere = "http://127.0.0.1:9"
    monkeypatch.setattr(constants, "ENDPOINT", nowhere)
    monkeypatch.setattr(
        constants, "HUGGINGFACE_CO_URL_TEMPLATE", nowhere + "/{repo_id}/resolve/{revision}/{filename}"
    )

    message = message_of("hf:org/name")

    assert message.startswith(f"hf:org/name: cannot reach {nowhere} (ConnectError: ")
    assert message.endswith(
        "and config.json is not in the cache: check the connection, the proxy and HF_ENDPOINT"
    )
    with pytest.raises(HubError, match="and the list of its files is not in the cache: check"):
        Repository(HubName("org/name"), COMMIT, None).names()


def test_what_is_in_the_cache_is_not_transferred_again(hub):
    hub.add("org/name", LLAMA)

    with transfers_recorded() as first:
        Repository.open(HubName("org/name"))
    with transfers_recorded() as second:
        Repository.open(HubName("org/name"))

    name = f"hf:org/name@{COMMIT}"
    assert first == {name: len(json.dumps(LLAMA))}
    assert second == {name: 0}


def test_weights_in_the_cache_are_read_there(hub, tmp_path):
    hub.add("org/name", LLAMA, files={"model.safetensors": ONE})
    folder = Repository.open(HubName("org/name")).config.parent
    weight = torch.arange(8.0).reshape(4, 2)
    save_file({"weight": weight, "bias": torch.zeros(4)}, folder / "model.safetensors")

    opened = open_checkpoint("hf:org/name")

    assert torch.equal(opened.tensor("weight"), weight)


def test_a_weight_that_is_on_the_hub_alone_is_not_read(hub):
    hub.add("org/name", LLAMA, files={"model.safetensors": ONE})
    opened = open_checkpoint("hf:org/name")

    with pytest.raises(CheckpointError, match=r"never downloads weights: run `hf download org/name --local-"):
        opened.tensor("weight")


def test_a_server_that_sends_whole_files_is_left(hub):
    hub.add("org/name", LLAMA, files={"model.safetensors": ONE}, is_whole=True)

    assert refusal_of("hf:org/name").startswith(
        "hf:org/name: the server does not support range requests for model.safetensors: run "
    )


@pytest.mark.parametrize(
    ("files", "reason"),
    [
        ({}, "hf:org/bad has no safetensors files"),
        ({"a.safetensors": ONE, "b.safetensors": ONE}, "but 2 files that match *.safetensors (a.safeten"),
        (
            {"model.safetensors.index.json": b'{"weight_map": {"w": "../model.safetensors"}}'},
            "the shard '../model.safetensors' is not in the folder of the index",
        ),
        ({"model.safetensors.index.json": b"{"}, "is not a valid shard index: not JSON"),
        ({"model.safetensors": Weights((1 << 40).to_bytes(8, "little"), 1 << 41)}, "its header claims"),
        ({"model.safetensors": Weights(b"\2\0\0\0\0\0\0\0[]", 10)}, "its header does not start with {"),
        (
            {"model.safetensors": Weights(ONE.header, ONE.size + 4)},
            "is not a valid safetensors file: its tensors end at",
        ),
    ],
)
def test_a_bad_repository_is_refused_with_the_reason(hub, files, reason):
    hub.add("org/bad", LLAMA, files=files)

    assert reason in refusal_of("hf:org/bad")


def test_a_config_that_no_model_has_is_not_downloaded(hub):
    hub.add("org/large", files={"config.json": b" " * ((16 << 20) + 1)})

    assert (
        message_of("hf:org/large")
        == "hf:org/large: config.json has 16,777,217 bytes; the limit is 16,777,216"
    )
    assert not any(line.startswith("GET /org/") for line in hub.requests)


def test_a_shard_with_another_tensor_than_its_index_lists_is_refused(hub):
    files = sharded({"a": ("F32", (2,)), "b": ("F32", (2,))}, 2)
    files["model-00002-of-00002.safetensors"] = Weights.of({"c": ("F32", (2,))})
    hub.add("org/bad", LLAMA, files=files)

    assert "'b' is missing from model-00002-of-00002.safetensors" in refusal_of("hf:org/bad")


def test_a_folder_that_is_there_goes_before_a_repository(hub, tmp_path, monkeypatch):
    (tmp_path / "org" / "name").mkdir(parents=True)
    (tmp_path / "org" / "name" / "config.json").write_text(json.dumps(LLAMA), encoding="utf-8")
    monkeypatch.chdir(tmp_path)

    resolve("hf:org/name")

    assert hub.requests == []


def test_the_headers_of_405b_are_a_thousandth_of_a_thousandth_of_its_weights(hub):
    config = json.loads((CONFIGS / "llama-3.1-405b.json").read_text(encoding="utf-8"))
    hub.add("meta-llama/Llama-3.1-405B", config, files=sharded(_llama_405b(config), 191))

    with transfers_recorded() as found:
        report = verify_weights("hf:meta-llama/Llama-3.1-405B", "hf:meta-llama/Llama-3.1-405B")

    assert report.is_bindable
    assert report.entries == 1137
    assert report.entry_bytes > 800e9
    (transferred,) = found.values()
    assert transferred < hub.sent < 10e6


def _llama_405b(config: dict[str, int]) -> dict[str, tuple[str, tuple[int, ...]]]:
    wide, inner, words = config["hidden_size"], config["intermediate_size"], config["vocab_size"]
    narrow = wide // config["num_attention_heads"] * config["num_key_value_heads"]
    layer = {
        "self_attn.q_proj": (wide, wide),
        "self_attn.k_proj": (narrow, wide),
        "self_attn.v_proj": (narrow, wide),
        "self_attn.o_proj": (wide, wide),
        "mlp.gate_proj": (inner, wide),
        "mlp.up_proj": (inner, wide),
        "mlp.down_proj": (wide, inner),
        "input_layernorm": (wide,),
        "post_attention_layernorm": (wide,),
    }
    shapes = {"model.embed_tokens": (words, wide), "model.norm": (wide,), "lm_head": (words, wide)}
    for number in range(config["num_hidden_layers"]):
        shapes |= {f"model.layers.{number}.{name}": shape for name, shape in layer.items()}
    return {f"{name}.weight": ("BF16", shape) for name, shape in shapes.items()}
