"""`fakexport export --workload generate` and `fakexport generate`, as a user types them."""

import json

import pytest
import torch
from tokenizers import Tokenizer
from tokenizers.models import WordLevel
from tokenizers.pre_tokenizers import Whitespace

import fakexport as fe
from tests.command_line import fakexport_here
from tests.generation.agreement import NEW_TOKENS, eager
from tests.generation.families import NAMED, VOCABULARY


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    return tmp_path_factory.mktemp("gemma")


@pytest.fixture(scope="module")
def model(folder):
    """A model with windows of 8 tokens in two of three layers, and a generation config next to it."""
    model = NAMED["gemma3"].saved(folder)
    settings = {"eos_token_id": 3, "num_beams": 4}
    (folder / "generation_config.json").write_text(json.dumps(settings))
    return model


@pytest.fixture(scope="module")
def archive(model, folder):
    path = folder / "gemma.pt2"
    done = fakexport_here("export", f"hf:{folder}", "--workload", "generate", "-o", path, "--no-progress")
    assert done.stdout.count("1 of 1 target exports; 0 errors, 0 warnings") == 2
    return path


@pytest.mark.slow
def test_the_window_survives(archive, folder, model):
    """Stock export loses it silently (transformers#47900). The prompt is longer than it."""
    ids = [7, 9, 11, 60, 61, 62, 20, 21, 22, 23, 24, 25, 70, 71, 72, 73, 74, 75, 40, 41, 42, 43]

    done = fakexport_here(
        "generate", archive, folder, "--prompt-ids", ",".join(map(str, ids)), "--max-new-tokens", NEW_TOKENS
    )

    (expected,) = eager(model, torch.tensor([ids]))
    assert [int(token) for token in done.stdout.split(",")] == expected
    assert len(set(expected)) > 3
    without_window = NAMED["gemma3"].build()
    for layer in without_window.model.layers:
        layer.self_attn.sliding_window = None
    without_window.config.layer_types = ["full_attention"] * 3
    without_window.config.sliding_window = 4096
    assert eager(without_window, torch.tensor([ids])) != [expected]


def test_what_the_generation_config_says_is_in_the_archive(archive, folder):
    done = fakexport_here("generate", archive, folder, "--prompt-ids", "5,6", "--max-new-tokens", 2)

    assert "note: num_beams of the model's generation config is not applied" in done.stderr
    loaded = fe.load_bundle(archive)
    calls = [fe.Generator(fe.bind(loaded, folder)).defaults.eos]
    assert calls == [(3,)]


def test_text_in_and_out(archive, folder, tmp_path):
    words = {f"w{index}": index for index in range(VOCABULARY)}
    tokenizer = Tokenizer(WordLevel(words, unk_token="w0"))
    tokenizer.pre_tokenizer = Whitespace()
    tokenizer.save(str(tmp_path / "tokenizer.json"))
    options = ["--max-new-tokens", 4, "--eos", "none"]

    ids = fakexport_here("generate", archive, folder, "--prompt-ids", "8,9,10", *options).stdout
    text = fakexport_here(
        "generate",
        archive,
        folder,
        "--prompt",
        "w8 w9 w10",
        "--tokenizer",
        tmp_path / "tokenizer.json",
        *options,
    ).stdout

    assert text.split() == [f"w{token}" for token in ids.strip().split(",")]


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["--prompt", "hello"], "--prompt needs --tokenizer"),
        (["--prompt-ids", "5,x"], "--prompt-ids '5,x': separate token ids with commas"),
        (["--prompt-ids", "5", "--eos", "a"], "--eos 'a': separate token ids with commas"),
        ([], "there is no prompt: the program expects input_ids"),
        (["--prompt-ids", "5", "--top-p", "2"], "top_p is 2.0, but must be above 0 and at most 1"),
        (["--prompt-ids", "5", "--max-new-tokens", "200"], "but the model has 128 positions"),
    ],
)
def test_a_wrong_call_is_one_line(arguments, message, archive, folder):
    done = fakexport_here("generate", archive, folder, *arguments, code=2)

    assert message in done.stderr
    assert done.stderr.count("\n") == 1
    assert not done.stdout


def test_a_bundle_without_weights_asks_for_the_checkpoint(archive):
    done = fakexport_here("generate", archive, "--prompt-ids", "5", code=2)

    assert "has no weights" in done.stderr
    assert "pass the checkpoint as the second argument" in done.stderr


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["examples/mlp.py:factory", "--workload", "decode"], "--workload decode supports hf: sources"),
        (["hf:bert", "--workload", "decode"], "does not return logits and a cache, so it does not generate"),
        (
            ["hf:llama", "--workload", "prefill", "--input", "input_ids=int64[1,4]"],
            "example inputs cannot be combined",
        ),
    ],
)
def test_a_workload_that_there_is_not_is_one_line(arguments, message, tmp_path):
    done = fakexport_here("export", *arguments, "-o", tmp_path / "x.pt2", "--no-progress", code=2)

    assert message in done.stderr
    assert not done.stdout
    assert not (tmp_path / "x.pt2").exists()
