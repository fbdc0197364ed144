"""The C++ program `generate`: the tokens of transformers, and what does not fit is one line."""

import copy
import dataclasses
import json
import shutil
import subprocess
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch

import fakexport as fe
from fakexport.deploy import compile
from fakexport.models.sources.generation.generation_defaults import generation_defaults
from tests.generation.agreement import LENGTHS, NEW_TOKENS, eager, exported, prompt
from tests.generation.families import IMAGE_TOKEN, NAMED

safetensors = pytest.importorskip("safetensors.torch")

# The first test compiles the C++ program and two packages.
pytestmark = [pytest.mark.slow, pytest.mark.xdist_group("cpp_runner"), pytest.mark.timeout(1200)]

Generate = Callable[..., subprocess.CompletedProcess[str]]


def generate(program: Path, folder: Path, *options: object) -> subprocess.CompletedProcess[str]:
    command = [program, "--folder", folder, "--max-new-tokens", NEW_TOKENS, *options]
    return subprocess.run(list(map(str, command)), capture_output=True, text=True, check=False)


def tokens(done: subprocess.CompletedProcess[str]) -> list[list[int]]:
    assert done.returncode == 0, done.stderr
    return [list(map(int, line.split(","))) for line in done.stdout.splitlines()]


def refusal(done: subprocess.CompletedProcess[str]) -> str:
    assert (done.returncode, done.stdout, done.stderr.count("\n")) == (2, "", 1), done.stderr
    return done.stderr.removeprefix("error: ").rstrip("\n")


def ids(row: torch.Tensor) -> str:
    return ",".join(map(str, row.flatten().tolist()))


@pytest.fixture(scope="session")
def cpp_generate(cpp_runner):
    return cpp_runner.with_name("generate")


def test_a_checkpoint_is_bound_when_it_runs(cpp_generate, llama):
    model, folder = llama
    assert not (folder / "project" / "model.safetensors").exists()
    prompts = [prompt(length) for length in (*LENGTHS, 1)]

    done = generate(
        cpp_generate,
        folder / "project",
        "--weights",
        folder,
        *(word for row in prompts for word in ("--prompt-ids", ids(row))),
    )

    assert tokens(done) == [row for ids in prompts for row in eager(model, ids)]
    assert done.stderr == ""


def test_tokens_are_drawn_as_python_draws_them(cpp_generate, llama):
    _, folder = llama
    rows = [prompt(length) for length in LENGTHS]
    expected = fe.Generator(fe.bind(fe.load_bundle(folder / "model.pt2"), folder))(
        [row[0].tolist() for row in rows],
        max_new_tokens=NEW_TOKENS,
        sampling=fe.Sampling(temperature=0.8, top_k=40, top_p=0.9, seed=5),
        eos=(),
    )

    words = [word for row in rows for word in ("--prompt-ids", ids(row))]
    drawn = ["--temperature", 0.8, "--top-k", 40, "--top-p", 0.9, "--seed", 5, "--eos", "none"]
    done = generate(cpp_generate, folder / "project", "--weights", folder, *words, *drawn)

    assert tokens(done) == list(map(list, expected.tokens))


def test_a_sequence_ends_with_the_token_that_ends_it(cpp_generate, llama):
    model, folder = llama
    row = eager(model, prompt(5))[0]
    last = row.index(row[4])

    done = generate(
        cpp_generate, folder / "project", "--weights", folder, "--prompt-ids", ids(prompt(5)), "--eos", row[4]
    )

    assert tokens(done) == [row[: last + 1]]


SETTINGS: list[dict[str, Any]] = [
    {"repetition_penalty": 1.7, "no_repeat_ngram_size": 2},
    {"no_repeat_ngram_size": 1, "suppress_tokens": [7, 8]},
    {"bad_words_ids": [[9]], "min_length": 14},
    {"min_new_tokens": 9},
    {"do_sample": True, "temperature": 0.7, "top_k": 30, "repetition_penalty": 1.3},
]


@pytest.mark.parametrize("settings", SETTINGS, ids=lambda settings: "_".join(settings))
def test_settings_of_the_generation_config_are_followed(settings, cpp_generate, llama, tmp_path):
    """Prompts of one token are padded, and what pads them is not a token of theirs."""
    model, folder = llama
    shutil.copytree(folder / "project", tmp_path / "project")
    prompts = [prompt(length) for length in (*LENGTHS, 1)]
    rows = [row for ids in prompts for row in eager(model, ids)]
    plain, ends = rows[0], [] if "no_repeat_ngram_size" in settings else [rows[0][3]]
    before = copy.deepcopy(model.generation_config)
    values = {**settings, "eos_token_id": ends, "pad_token_id": 30}
    if "bad_words_ids" in values:
        values["bad_words_ids"] = [*values["bad_words_ids"], plain[:2], [int(prompts[0][0, -1]), plain[0]]]
    model.generation_config.update(**values)
    try:
        described = json.loads((tmp_path / "project" / "generation.json").read_text())
        described["defaults"] = dataclasses.asdict(generation_defaults(model))
        (tmp_path / "project" / "generation.json").write_text(json.dumps(described))
        expected = [row for ids in prompts for row in eager(model, ids)]
        torch.manual_seed(4)
        options = {"max_new_tokens": NEW_TOKENS, "top_p": 0.9, "do_sample": True}
        drawn = [model.generate(ids, attention_mask=torch.ones_like(ids), **options) for ids in prompts]
    finally:
        model.generation_config = before
    words = [word for row in prompts for word in ("--prompt-ids", ids(row))]

    done = generate(cpp_generate, tmp_path / "project", "--weights", folder, *words)

    assert tokens(done) == expected
    assert expected != rows
    if "do_sample" in settings:
        assert "note: do_sample of the model's generation config is not applied: pass --temp" in done.stderr
        options_ = ("--top-p", 0.9, "--seed", 4)
        made = generate(cpp_generate, tmp_path / "project", "--weights", folder, *words, *options_)
        assert tokens(made) == [
            row[0, ids.shape[1] :].tolist() for ids, row in zip(prompts, drawn, strict=True)
        ]
        assert made.stderr == ""


@pytest.mark.parametrize(
    ("options", "line"),
    [
        ((), "there is no prompt: the program expects 'input_ids'"),
        (
            ("--prompt-ids", "1,9999"),
            "the token 9999 does not exist: the model has 1024 tokens, starting at 0",
        ),
        (("--prompt-ids", "1,,2"), "--prompt-ids '' is not a number in range"),
        (("--prompt-ids", "-1"), "-1 is not a token id: ids are 0 or more"),
        (("--prompt-ids", "1", "--top-p", "2"), "--top-p must be above 0 and at most 1"),
        (("--prompt-ids", "1", "--temperature", "0"), "--temperature must be at least 1e-6"),
        (("--prompt-ids", "1", "--temperature", "inf"), "--temperature must be at least 1e-6"),
        (("--prompt-ids", "1", "--beams", "2"), "unknown option '--beams'; see --help"),
        (
            ("--prompt-ids", "1", "--max-new-tokens", "127"),
            "the prompt and the new tokens are 129 tokens in total, but the model has 128 positions",
        ),
    ],
)
def test_bad_usage_is_one_line(options, line, cpp_generate, llama):
    _, folder = llama

    assert refusal(generate(cpp_generate, folder / "project", "--weights", folder, *options)) == line


def test_a_cache_in_buffers_is_one_tensor_of_both_programs(cpp_generate, tmp_path):
    """Mistral has windows of 8 tokens here. Each prompt starts at the first place again."""
    family = NAMED["mistral"]
    model = dataclasses.replace(family, config={**family.config, "num_hidden_layers": 1}).saved(tmp_path)
    calls: Any = ("prefill", "decode")
    programs = {
        call: fe.export(f"hf:{tmp_path}", workload=call, max_cache_len=60, cache_form="buffers")
        for call in calls
    }
    compile(fe.Bundle(programs), tmp_path / "project", to="cpp-project")
    prompts = [prompt(length) for length in (21, 5, 1)]

    words = [word for row in prompts for word in ("--prompt-ids", ids(row))]
    done = generate(cpp_generate, tmp_path / "project", "--weights", tmp_path, *words)

    assert tokens(done) == [row for ids in prompts for row in eager(model, ids)]
    too_many = ("--weights", tmp_path, "--prompt-ids", ids(prompt(40)))
    line = "the prompt and the new tokens are 64 tokens in total, but the static cache has room for 60"
    assert refusal(generate(cpp_generate, tmp_path / "project", *too_many)) == line


def _logits_of_another(record: Any) -> None:
    record["decode"]["logits"] = "scores"


def _state_left_out(record: Any) -> None:
    del record["decode"]["state"][0]


def _without_vocabulary(record: Any) -> None:
    del record["prefill"]["vocabulary"]


@pytest.mark.parametrize(
    ("change", "line"),
    [
        (_logits_of_another, "generation.json names 'scores', which the program does not have"),
        (
            _state_left_out,
            "generation.json does not describe the input 'past_key_values_layers_0_keys' of decode",
        ),
        (_without_vocabulary, "{path}: the field 'vocabulary' is missing"),
        (lambda record: record.update(format="fakexport.generation/1"), "{path}: its format is "),
        (
            lambda record: record["defaults"].update(bad_words=[[5, 6], []]),
            "{path}: one of the bad_words has fewer than two tokens",
        ),
    ],
)
def test_a_record_that_does_not_fit_is_one_line(change, line, cpp_generate, llama, tmp_path):
    _, folder = llama
    for name in ("prefill.aoti.pt2", "decode.aoti.pt2"):
        (tmp_path / name).symlink_to(folder / "project" / name)
    record = json.loads((folder / "project" / "generation.json").read_text())
    change(record)
    (tmp_path / "generation.json").write_text(json.dumps(record))

    done = generate(cpp_generate, tmp_path, "--weights", folder, "--prompt-ids", "1,2")

    assert refusal(done).startswith(line.format(path=tmp_path / "generation.json"))


# An encoder of sounds; a prefill that reads one number of tokens; an encoder of text; an image in the text.
@pytest.mark.parametrize(
    "name",
    [
        "whisper",
        *(pytest.param(name, marks=pytest.mark.exhaustive) for name in ("mamba", "t5", "llava", "mixtral")),
    ],
)
def test_a_family_generates_what_transformers_does(name, cpp_generate, tmp_path):
    family = NAMED[name]
    model: Any = family.saved(tmp_path)
    compile(fe.bind(exported(tmp_path), tmp_path), project := tmp_path / "project", to="cpp-project")
    shutil.rmtree(project / "src")
    inputs = family.inputs(torch.Generator().manual_seed(1))
    image = torch.full((1, family.image_tokens), IMAGE_TOKEN)
    row = torch.cat([image, prompt(21)], dim=1) if family.reads_text else None
    words: list[object] = [] if row is None else ["--prompt-ids", ids(row)]
    if inputs:
        safetensors.save_file(inputs, tmp_path / "in.safetensors")
        words += ["--inputs", tmp_path / "in.safetensors"]

    done = generate(cpp_generate, project, *words)

    assert tokens(done) == eager(model, row, **inputs)


@pytest.mark.exhaustive
def test_a_first_token_is_forced_after_one_alone(cpp_generate, tmp_path):
    """Translation: a decoder that starts from one token, then from two. Its tables are in no checkpoint."""
    model: Any = NAMED["marian"].build()
    model.generation_config.update(forced_bos_token_id=30)
    model.save_pretrained(tmp_path)
    compile(fe.bind(exported(tmp_path), tmp_path), project := tmp_path / "project", to="cpp-project")
    start = torch.tensor([[0, 17]])
    safetensors.save_file({"decoder_input_ids": start}, tmp_path / "in.safetensors")
    row = prompt(21)

    alone = generate(cpp_generate, project, "--prompt-ids", ids(row))
    more = generate(cpp_generate, project, "--prompt-ids", ids(row), "--inputs", tmp_path / "in.safetensors")

    assert tokens(alone) == eager(model, row)
    assert tokens(more) == [found[1:] for found in eager(model, row, decoder_input_ids=start)]
    assert tokens(alone)[0][0] == 30 != tokens(more)[0][0]
