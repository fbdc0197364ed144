"""The C++ program `generate` takes and prints text: the ids and the text of the tokenizers package."""

import os
import shutil
import subprocess
from pathlib import Path
from typing import Any

import pytest
import torch
from tokenizers import Tokenizer, decoders, models, pre_tokenizers, trainers

from tests.e2e.tokenizer_kinds import KINDS, TEXTS
from tests.generation.agreement import eager

# The first test compiles the C++ program and two packages.
pytestmark = [pytest.mark.slow, pytest.mark.xdist_group("cpp_runner"), pytest.mark.timeout(1800)]

SPELLED = "é中😀ok"
"""Each byte of it occurs once."""


def build(project: Path, *options: str) -> None:
    subprocess.run(["cmake", "-B", project / "build", *options], cwd=project, check=True)
    subprocess.run(["cmake", "--build", project / "build", "--target", "generate"], check=True)


@pytest.fixture(scope="module")
def built(cpp_runner):
    """`generate` without tokenizers, and with those of a checkout or of the stand-in for it."""
    without = cpp_runner.with_name("generate_ids")
    shutil.copy(cpp_runner.with_name("generate"), without)
    checkout = os.environ.get("TOKENIZERS_CPP", Path(__file__).with_name("tokenizers_cpp"))
    build(cpp_runner.parent.parent, f"-DTOKENIZERS_CPP={checkout}")
    return without, cpp_runner.with_name("generate")


@pytest.fixture(scope="module")
def spelling(llama, tmp_path_factory):
    """A tokenizer with one token per byte, and a checkpoint that says `SPELLED` after its first byte."""
    folder = tmp_path_factory.mktemp("spelling")
    tokenizer = Tokenizer(models.BPE())
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    tokenizer.decoder = decoders.ByteLevel()
    alphabet = pre_tokenizers.ByteLevel.alphabet()
    tokenizer.train_from_iterator([], trainers.BpeTrainer(initial_alphabet=alphabet, show_progress=False))
    tokenizer.save(str(folder / "tokenizer.json"))
    ids = tokenizer.encode(SPELLED).ids
    assert len(set(ids)) == len(ids) == len(SPELLED.encode())

    changed: Any = llama[0].__class__(llama[0].config)
    with torch.no_grad():
        for name, parameter in changed.named_parameters():
            if "o_proj" in name or "down_proj" in name:
                parameter.zero_()  # What a layer adds.
        places = torch.eye(changed.config.hidden_size)[: len(ids)]
        changed.model.embed_tokens.weight.zero_()[ids] = places
        changed.lm_head.weight.zero_()[ids[1:]] = places[:-1]
    changed.save_pretrained(folder)
    return folder / "tokenizer.json", folder


def generate(program: Path, folder: Path, *options: object) -> subprocess.CompletedProcess[bytes]:
    command = [program, "--folder", folder / "project", *options]
    words = [option if isinstance(option, bytes) else str(option) for option in command]
    return subprocess.run(words, capture_output=True, check=False)


def refusal(done: subprocess.CompletedProcess[bytes]) -> str:
    assert (done.returncode, done.stdout, done.stderr.count(b"\n")) == (2, b"", 1), done.stderr
    return done.stderr.decode().removeprefix("error: ").rstrip("\n")


@pytest.mark.parametrize("kind", KINDS)
def test_text_is_that_of_the_same_ids_in_python(kind, built, llama, tmp_path):
    tokenizer = KINDS[kind]()
    tokenizer.save(str(tmp_path / "tokenizer.json"))
    model, folder = llama
    new = [eager(model, torch.tensor([tokenizer.encode(text).ids]))[0][:4] for text in TEXTS]
    assert len(set(map(tuple, new))) > len(TEXTS) // 2  # Other ids, other tokens.

    prompts = [word for text in TEXTS for word in ("--prompt", text)]
    options = ["--weights", folder, "--max-new-tokens", 4, "--tokenizer", tmp_path / "tokenizer.json"]
    done = generate(built[1], folder, *options, *prompts)

    assert (done.returncode, done.stderr) == (0, b"")
    assert done.stdout.decode() == "".join(tokenizer.decode(ids) + "\n" for ids in new)


def test_a_character_is_printed_when_it_is_complete(built, llama, spelling):
    tokenizer, weights = spelling
    first = Tokenizer.from_file(str(tokenizer)).encode(SPELLED).ids[0]
    words = ["--folder", llama[1] / "project", "--weights", weights, "--tokenizer", tokenizer]
    command = [built[1], *words, "--prompt-ids", first, "--max-new-tokens", len(SPELLED.encode()) - 1]

    with subprocess.Popen(list(map(str, command)), stdout=subprocess.PIPE) as process:
        assert process.stdout is not None
        parts = list(iter(lambda: os.read(process.stdout.fileno(), 4096), b""))  # type: ignore[union-attr]

    # The prompt was the first byte of the first character, so the second alone is not one.
    assert "".join(part.decode("utf-8", "strict") for part in parts) == "\ufffd" + SPELLED[1:] + "\n"
    assert process.returncode == 0


def test_bytes_that_follow_each_other_are_printed_together(built, llama, spelling, tmp_path):
    """`A` is a byte, and none any more when one follows that makes the bytes other than UTF-8."""
    ids = Tokenizer.from_file(str(spelling[0])).encode(SPELLED).ids[:5]
    vocabulary = dict(zip(("x", "<0x41>", "<end>", "<0xC3>", "y"), ids, strict=True))
    tokenizer = Tokenizer(models.BPE(vocab=vocabulary, merges=[], byte_fallback=True))
    tokenizer.decoder = decoders.Sequence([decoders.ByteFallback(), decoders.Fuse()])
    tokenizer.add_special_tokens(["<end>"])
    tokenizer.save(str(tmp_path / "tokenizer.json"))

    options = ["--weights", spelling[1], "--prompt-ids", ids[0], "--max-new-tokens", 4]
    done = generate(built[1], llama[1], *options, "--tokenizer", tmp_path / "tokenizer.json")

    assert done.stdout.decode() == tokenizer.decode(ids[1:]) + "\n" == "\ufffd\ufffdy\n"


def test_a_print_decodes_the_newest_tokens_alone(built, llama, spelling, tmp_path):
    """All of them once more at the end. The server of the stand-in writes down how many each request has."""
    if "TOKENIZERS_CPP" in os.environ:
        pytest.skip("needs the stand-in")
    tokenizer, weights = spelling
    first = Tokenizer.from_file(str(tokenizer)).encode(SPELLED).ids[0]
    options = ["--weights", weights, "--tokenizer", tokenizer, "--max-new-tokens", 40, "--prompt-ids", first]
    command = [built[1], "--folder", llama[1] / "project", *options]
    written = tmp_path / "counts"

    subprocess.run(
        list(map(str, command)),
        check=True,
        env={**os.environ, "DECODED": str(written)},
        stdout=subprocess.DEVNULL,
    )

    counts = [int(line) for line in written.read_text().split()]
    assert counts[-1] == 40
    assert max(counts[:-1]) <= 9  # Two characters of four bytes, and the next one.


@pytest.mark.parametrize(
    ("options", "line"),
    [
        (("--prompt", "x"), "--prompt needs --tokenizer, the tokenizer.json of the model"),
        (
            ("--prompt", "x", "--prompt-ids", "1"),
            "--prompt needs --tokenizer, the tokenizer.json of the model",
        ),
        (
            ("--prompt", "x", "--prompt-ids", "1", "--tokenizer", "{good}"),
            "use either --prompt or --prompt-ids, not both",
        ),
        (
            ("--prompt", b"\xff", "--tokenizer", "{good}"),
            "--prompt is not UTF-8",
        ),
        (("--prompt", "", "--tokenizer", "{good}"), "a prompt has no tokens"),
        (("--prompt", "x", "--tokenizer", "{none}"), "{none}: No such file or directory"),
        (
            ("--prompt", "x", "--tokenizer", "{not_utf8}"),
            "{not_utf8}: not valid JSON: ",
        ),
        (("--prompt", "x", "--tokenizer", "{unknown}"), "tokenizers cannot use {unknown}: "),
    ],
)
def test_what_does_not_fit_is_one_line(options, line, built, llama, spelling, tmp_path):
    content = spelling[0].read_text()
    files = {"good": spelling[0], "none": tmp_path / "none"}
    files["unknown"] = tmp_path / "unknown.json"
    files["unknown"].write_text(content.replace('"BPE"', '"New"'))
    files["not_utf8"] = tmp_path / "not_utf8.json"
    files["not_utf8"].write_bytes(b'{"a": "\xff"}')
    words = [word.format(**files) if isinstance(word, str) else word for word in options]

    done = generate(built[1], llama[1], "--weights", spelling[1], *words)

    assert refusal(done).startswith(line.format(**files))


def test_a_build_without_tokenizers_says_what_is_missing(built, llama, spelling):
    tokenizer, weights = spelling
    options = ["--weights", weights, "--prompt", "x", "--tokenizer", tokenizer]

    line = refusal(generate(built[0], llama[1], *options))

    assert line == "--tokenizer needs a build with -DTOKENIZERS_CPP=FOLDER: see README.md"
