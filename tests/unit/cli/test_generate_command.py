"""`fakexport export --workload generate` and `fakexport generate`, as a user types them."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
import torch
from tokenizers import Tokenizer
from tokenizers.models import WordLevel
from tokenizers.pre_tokenizers import Whitespace
from torch import nn

import fakexport as fe
from tests.command_line import fakexport_here
from tests.generation.agreement import NEW_TOKENS, eager
from tests.generation.families import NAMED, VOCABULARY


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("gemma")


@pytest.fixture(scope="module")
def model(folder: Path) -> nn.Module:
    """A model with windows of 8 tokens in two of three layers, and a generation config next to it."""
    model = NAMED["gemma3"].saved(folder)
    settings = {"eos_token_id": 3, "num_beams": 4}
    (folder / "generation_config.json").write_text(json.dumps(settings))
    return model


@pytest.fixture(scope="module")
def archive(model: nn.Module, folder: Path) -> Path:
    path = folder / "gemma.pt2"
    done = fakexport_here("export", f"hf:{folder}", "--workload", "generate", "-o", path, "--no-progress")
    assert done.stdout.count("1 of 1 target exports; 0 errors, 0 warnings") == 2
    return path


@pytest.mark.slow
def test_the_window_survives(archive: Path, folder: Path, model: nn.Module) -> None:
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


def test_what_the_generation_config_says_is_in_the_archive(archive: Path, folder: Path) -> None:
    done = fakexport_here("generate", archive, folder, "--prompt-ids", "5,6", "--max-new-tokens", 2)

    assert "note: num_beams of the model's generation config is not applied" in done.stderr
    loaded = fe.load_bundle(archive)
    calls = [fe.Generator(fe.bind(loaded, folder)).defaults.eos]
    assert calls == [(3,)]


def test_text_in_and_out(archive: Path, folder: Path, tmp_path: Path) -> None:
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


@pytest.mark.slow
def test_programs_that_were_exported_one_by_one_generate_as_well(
    archive: Path, folder: Path, tmp_path: Path
) -> None:
    for call in ("prefill", "decode"):
        fakexport_here(
            "export", f"hf:{folder}", "--workload", call, "-o", tmp_path / f"{call}.pt2", "--no-progress"
        )
    pairs = [f"{call}={tmp_path / call}.pt2" for call in ("prefill", "decode")]
    fakexport_here("bundle", *pairs, "-o", tmp_path / "both.pt2")
    fakexport_here("bind", tmp_path / "both.pt2", folder, "-o", tmp_path / "bound.pt2")
    options = ["--prompt-ids", "5,6,7", "--max-new-tokens", 6, "--top-k", 5, "--seed", 3]

    found = fakexport_here("generate", tmp_path / "bound.pt2", *options)

    assert found.stdout == fakexport_here("generate", archive, folder, *options).stdout


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["--prompt", "hello"], "--prompt needs --tokenizer"),
        (["--prompt-ids", "5,x"], "--prompt-ids '5,x': write token ids between commas"),
        (["--prompt-ids", "5", "--eos", "a"], "--eos 'a': write token ids between commas"),
        ([], "there is no prompt: the program takes input_ids"),
        (["--prompt-ids", "5", "--top-p", "2"], "top_p is 2.0, but must be above 0 and at most 1"),
        (["--prompt-ids", "5", "--max-new-tokens", "200"], "but the model has 128 positions"),
    ],
)
def test_a_wrong_call_is_one_line(arguments: list[str], message: str, archive: Path, folder: Path) -> None:
    done = fakexport_here("generate", archive, folder, *arguments, code=2)

    assert message in done.stderr
    assert done.stderr.count("\n") == 1
    assert not done.stdout


def test_a_bundle_without_weights_asks_for_the_checkpoint(archive: Path) -> None:
    done = fakexport_here("generate", archive, "--prompt-ids", "5", code=2)

    assert "has no weights" in done.stderr
    assert "name the checkpoint after it" in done.stderr


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["examples/mlp.py:factory", "--workload", "decode"], "--workload decode applies to hf: sources"),
        (["hf:bert", "--workload", "decode"], "does not return logits and a cache, so it does not generate"),
        (
            ["hf:llama", "--workload", "prefill", "--input", "input_ids=int64[1,4]"],
            "example inputs do not apply",
        ),
    ],
)
def test_a_workload_that_there_is_not_is_one_line(arguments: list[str], message: str, tmp_path: Path) -> None:
    done = fakexport_here("export", *arguments, "-o", tmp_path / "x.pt2", "--no-progress", code=2)

    assert message in done.stderr
    assert not done.stdout
    assert not (tmp_path / "x.pt2").exists()
