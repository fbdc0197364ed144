"""bundle, and what the other commands make of one: exit codes, and one line where it is wrong."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
import torch

pytest.importorskip("safetensors")
from safetensors.torch import load_file, save_file, save_model

import fakexport as fe
from fakexport.cli import main
from tests.known_facts import with_facts
from tests.unit.archive.bundles import IMAGE, Encode, fakes, speller

PREFIXES = ["--prefix", "encode=:model.", "--prefix", "decode=:net."]


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """`encode.pt2`, `decode.pt2`, the `bundle.pt2` of both, `bound.pt2`, a checkpoint and inputs."""
    folder = tmp_path_factory.mktemp("bundles")
    for method, program in fakes().items():
        fe.save(with_facts(program, source=f"m.py:{method}"), folder / f"{method}.pt2")
    save_model(speller(), str(folder / "checkpoint.safetensors"))
    save_file({"image": IMAGE}, folder / "in.safetensors")
    pairs = [f"{method}={folder}/{method}.pt2" for method in ("encode", "decode")]
    assert main(["bundle", *pairs, *PREFIXES, "-o", f"{folder}/bundle.pt2"]) == 0
    checkpoint = f"{folder}/checkpoint.safetensors"
    assert main(["bind", f"{folder}/bundle.pt2", checkpoint, "-o", f"{folder}/bound.pt2"]) == 0
    return folder


def test_a_bundle_keeps_what_the_archives_said(folder: Path) -> None:
    from fakexport.archive.loading import load_archive

    loaded = load_archive(folder / "bundle.pt2", is_whole=True)

    assert [about.source for about in loaded.manifest.methods.values()] == ["m.py:encode", "m.py:decode"]
    assert len(loaded.bundle.shared) == 9


@pytest.mark.parametrize("arguments", [["bound.pt2"], ["bundle.pt2", "checkpoint.safetensors"]])
def test_run_takes_one_method(arguments: list[str], folder: Path, tmp_path: Path) -> None:
    paths = [f"{folder}/{name}" for name in arguments]
    options = [
        "--method",
        "encode",
        "--inputs",
        f"{folder}/in.safetensors",
        "-o",
        f"{tmp_path}/out.safetensors",
    ]

    assert main(["run", *paths, *options]) == 0

    with torch.no_grad():
        expected = Encode(speller())(IMAGE)
    assert torch.equal(load_file(tmp_path / "out.safetensors")["output"], expected)


def test_inspect_shows_all_methods_or_one(folder: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["inspect", f"{folder}/bound.pt2"]) == 0
    text = capsys.readouterr().out
    assert "8 tensors, 296 B; 8 of them, 296 B, are shared by several methods and stored once" in text
    assert "decode: `net.*` is `*` in a checkpoint" in text
    assert "method encode\n" in text
    assert main(["inspect", f"{folder}/bound.pt2", "--method", "decode"]) == 0
    assert "method encode" not in capsys.readouterr().out
    assert main(["inspect", f"{folder}/bound.pt2", "--format", "json"]) == 0
    data = json.loads(capsys.readouterr().out)
    assert data["shared_weight_bytes"] == data["weight_bytes"] == 296


def test_verify_weights_and_a_link_take_a_bundle(
    folder: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    checkpoint = f"{folder}/checkpoint.safetensors"
    assert main(["verify-weights", f"{folder}/bundle.pt2", checkpoint]) == 0
    assert main(["verify-weights", f"{folder}/bound.pt2"]) == 0
    assert "all 8 weights fit" in capsys.readouterr().out
    linked = f"{folder}/linked.pt2"
    assert main(["bind", f"{folder}/bundle.pt2", checkpoint, "--link", "-o", linked]) == 0
    assert "296 bytes linked, 0 bytes inside" in capsys.readouterr().out


def test_a_retargeted_method_takes_the_checkpoint_of_the_bundle(
    folder: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    checkpoint, moved, bound = f"{folder}/checkpoint.safetensors", f"{tmp_path}/a.pt2", f"{tmp_path}/b.pt2"
    retarget = ["retarget", f"{folder}/bundle.pt2", "--method", "encode", "--to", "cpu=cuda:0", "-o", moved]
    assert main(retarget) == 0
    assert main(["verify-weights", moved, checkpoint]) == 0

    assert main(["bind", moved, checkpoint, "--devices", "cuda:0=cpu", "-o", bound]) == 0

    outputs = f"{tmp_path}/out.safetensors"
    assert main(["run", bound, "--inputs", f"{folder}/in.safetensors", "-o", outputs]) == 0
    with torch.no_grad():
        assert torch.equal(load_file(outputs)["output"], Encode(speller())(IMAGE))
    capsys.readouterr()
    for arguments in ([moved], [f"{folder}/bundle.pt2", "--method", "encode"]):
        assert main(["inspect", *arguments]) == 0
        assert "names         `model.*` is `*` in a checkpoint" in capsys.readouterr().out
        assert main(["inspect", *arguments, "--format", "json"]) == 0
        prefix = json.loads(capsys.readouterr().out)["methods"][0]["weights"]["prefix"]
        assert prefix == {"checkpoint": "", "program": "model."}


def test_a_bundle_is_retargeted_method_by_method(
    folder: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    for method in ("encode", "decode"):
        moved = ["--method", method, "--to", "cpu=cuda:0", "-o", f"{tmp_path}/{method}.pt2"]
        assert main(["retarget", f"{folder}/bundle.pt2", *moved]) == 0
    pairs = [f"{method}={tmp_path}/{method}.pt2" for method in ("encode", "decode")]

    assert main(["bundle", *pairs, "-o", f"{tmp_path}/bundle.pt2"]) == 0

    assert "9 weights and buffers shared" in capsys.readouterr().out
    assert main(["verify-weights", f"{tmp_path}/bundle.pt2", f"{folder}/checkpoint.safetensors"]) == 0
    assert main(["bundle", *pairs, "--prefix", "encode=:", "-o", f"{tmp_path}/none.pt2"]) == 0
    assert "decode: `net.*`" in shown(f"{tmp_path}/none.pt2", capsys)
    assert "encode: `" not in shown(f"{tmp_path}/none.pt2", capsys)


def shown(path: str, capsys: pytest.CaptureFixture[str]) -> str:
    capsys.readouterr()
    assert main(["inspect", path]) == 0
    return capsys.readouterr().out


def test_methods_that_were_put_elsewhere_have_the_target_where_they_are(
    folder: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    programs = {**fakes("H100"), "stays": fe.export(torch.nn.ReLU(), (IMAGE,))}
    fe.save_bundle(
        programs, tmp_path / "gpu.pt2", prefixes={"encode": ("", "model."), "decode": ("", "net.")}
    )
    command = ["bind", f"{tmp_path}/gpu.pt2", f"{folder}/checkpoint.safetensors", "-o", f"{tmp_path}/cpu.pt2"]

    assert main([*command, "--devices", "cuda:0=cpu"]) == 0

    capsys.readouterr()
    assert main(["inspect", f"{tmp_path}/cpu.pt2", "--format", "json"]) == 0
    archives = {about["method"]: about for about in json.loads(capsys.readouterr().out)["methods"]}
    targets = {
        name: (about["topology"], about["profiles"], about["device_map"]) for name, about in archives.items()
    }
    moved = ("cpu", ["cpu"], {})
    assert targets == {"encode": moved, "decode": moved, "stays": ("cpu", ["cpu"], {"": "cpu"})}


def test_compare_gives_a_method_the_weights_of_its_own_model(
    folder: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    (tmp_path / "model.py").write_text(
        "from tests.unit.archive.bundles import Encode, speller\n"
        "def factory():\n    return Encode(speller()).eval()\n"
    )
    program = [f"{folder}/bundle.pt2", "--method", "encode", "--inputs", f"{folder}/in.safetensors"]

    assert main(["compare", f"{tmp_path}/model.py:factory", *program]) == 0

    assert "the outputs are equal bit for bit" in capsys.readouterr().out


def test_diff_compares_one_method_with_an_archive_or_a_bundle(
    folder: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    for other in ("bound.pt2", "decode.pt2"):
        assert main(["diff", f"{folder}/bundle.pt2", f"{folder}/{other}", "--method", "decode"]) == 0
    assert main(["diff", f"{folder}/encode.pt2", f"{folder}/bundle.pt2", "--method", "decode"]) == 1
    capsys.readouterr()


@pytest.mark.parametrize(
    ("command", "message"),
    [
        (["run", "{}/bound.pt2"], "is a bundle of the methods encode, decode: choose one (--method NAME)"),
        (["run", "{}/bound.pt2", "--method", "x"], "has no method 'x'; there are encode, decode"),
        (["run", "{}/encode.pt2", "--method", "x"], "has one program and no method 'x'"),
        (["source", "{}/bound.pt2"], "is a bundle of the methods encode, decode"),
        (["diff", "{}/bound.pt2", "{}/bound.pt2"], "is a bundle of the methods encode, decode"),
        (["diff", "{}/encode.pt2", "{}/decode.pt2", "--method", "x"], "has one program and no method"),
        (["compile", "{}/bound.pt2", "--to", "onnx", "-o", "{}/x"], "is a bundle of the methods"),
        (["retarget", "{}/bound.pt2", "--to", "cpu=cuda:0", "-o", "{}/x"], "is a bundle of the methods"),
        (["verify-weights", "{}/bundle.pt2"], "has no weights of its own"),
        (["bundle", "encode", "-o", "{}/x"], "'encode' does not have the form METHOD=ARCHIVE"),
        (["bundle", "a={}/encode.pt2", "a={}/decode.pt2", "-o", "{}/x"], "a is given twice"),
        (
            ["bundle", "a={}/encode.pt2", "--prefix", "b=x.", "-o", "{}/x"],
            "a prefix for 'b', but the methods",
        ),
        (["bundle", "a={}/none.pt2", "-o", "{}/x"], "No such file"),
        (["bundle", "a={}/bound.pt2", "-o", "{}/x"], "is a bundle of the methods"),
        (["inspect", "hf:gpt2", "--method", "a"], "apply to archives, not to models"),
    ],
)
def test_wrong_use_is_one_line_and_writes_nothing(
    command: list[str], message: str, folder: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main([word.format(folder) for word in command]) == 2

    error = capsys.readouterr().err
    assert message in error
    assert len(error.splitlines()) == 1
    assert not (folder / "x").exists()
