"""bundle, and what the other commands make of one: exit codes, and one line where it is wrong."""

import json

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
def folder(tmp_path_factory):
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


def test_a_bundle_keeps_what_the_archives_said(folder):
    from fakexport.archive.loading import load_archive

    loaded = load_archive(folder / "bundle.pt2", is_whole=True)

    assert [about.source for about in loaded.manifest.methods.values()] == ["m.py:encode", "m.py:decode"]
    assert len(loaded.bundle.shared) == 9


@pytest.mark.parametrize("arguments", [["bound.pt2"], ["bundle.pt2", "checkpoint.safetensors"]])
def test_run_takes_one_method(arguments, folder, tmp_path):
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


def test_inspect_shows_all_methods_or_one(folder, capsys):
    assert main(["inspect", f"{folder}/bound.pt2"]) == 0
    text = capsys.readouterr().out
    assert "8 tensors, 296 B; 8 of them, 296 B, are shared by several methods and stored once" in text
    assert "decode: a weight `net.*` of the program is named `*` in a checkpoint" in text
    assert "method encode\n" in text
    assert main(["inspect", f"{folder}/bound.pt2", "--method", "decode"]) == 0
    assert "method encode" not in capsys.readouterr().out
    assert main(["inspect", f"{folder}/bound.pt2", "--format", "json"]) == 0
    data = json.loads(capsys.readouterr().out)
    assert data["shared_weights"]["bytes"] == data["weights"]["bytes"] == 296


def test_verify_weights_and_a_link_take_a_bundle(folder, tmp_path, capsys):
    checkpoint = f"{folder}/checkpoint.safetensors"
    assert main(["verify-weights", f"{folder}/bundle.pt2", checkpoint]) == 0
    assert main(["verify-weights", f"{folder}/bound.pt2"]) == 0
    assert "all 8 weights fit" in capsys.readouterr().out
    linked = f"{folder}/linked.pt2"
    assert main(["bind", f"{folder}/bundle.pt2", checkpoint, "--link", "-o", linked]) == 0
    assert "296 bytes stay in the checkpoint, 0 bytes are in the archive" in capsys.readouterr().out


def test_a_retargeted_method_takes_the_checkpoint_of_the_bundle(folder, tmp_path, capsys):
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
        assert (
            "names         a weight `model.*` of the program is named `*` in a checkpoint"
            in capsys.readouterr().out
        )
        assert main(["inspect", *arguments, "--format", "json"]) == 0
        (about,) = json.loads(capsys.readouterr().out)["methods"].values()
        assert about["prefix"] == ["", "model."]


def test_compare_gives_a_method_the_weights_of_its_own_model(folder, tmp_path, capsys):
    (tmp_path / "model.py").write_text(
        "from tests.unit.archive.bundles import Encode, speller\n"
        "def factory():\n    return Encode(speller()).eval()\n"
    )
    program = [f"{folder}/bundle.pt2", "--method", "encode", "--inputs", f"{folder}/in.safetensors"]

    assert main(["compare", f"{tmp_path}/model.py:factory", *program]) == 0

    assert "the outputs are equal bit for bit" in capsys.readouterr().out


def test_diff_compares_one_method_with_an_archive_or_a_bundle(folder, capsys):
    for other in ("bound.pt2", "decode.pt2"):
        assert main(["diff", f"{folder}/bundle.pt2", f"{folder}/{other}", "--method", "decode"]) == 0
    assert main(["diff", f"{folder}/encode.pt2", f"{folder}/bundle.pt2", "--method", "decode"]) == 1
    capsys.readouterr()


@pytest.mark.parametrize(
    ("command", "message"),
    [
        (["run", "{}/bound.pt2"], "is a bundle of the methods encode, decode: choose one (--method NAME)"),
        (["run", "{}/bound.pt2", "--method", "x"], "has no method 'x'; the methods are encode, decode"),
        (["run", "{}/encode.pt2", "--method", "x"], "is not a bundle, so it has no method 'x'"),
        (["source", "{}/bound.pt2"], "is a bundle of the methods encode, decode"),
        (["diff", "{}/bound.pt2", "{}/bound.pt2"], "is a bundle of the methods encode, decode"),
        (["diff", "{}/encode.pt2", "{}/decode.pt2", "--method", "x"], "is not a bundle, so it has no method"),
        (["compile", "{}/bound.pt2", "--to", "onnx", "-o", "{}/x.onnx"], "--method encode|decode"),
        (["compile", "{}/bound.pt2", "--to", "executorch", "-o", "{}/x"], "is a bundle of the methods"),
        (["retarget", "{}/bound.pt2", "--to", "cpu=cuda:0", "-o", "{}/x"], "is a bundle of the methods"),
        (["verify-weights", "{}/bundle.pt2"], "has no weights of its own"),
        (["bundle", "encode", "-o", "{}/x"], "expected METHOD=ARCHIVE, got 'encode'"),
        (["bundle", "a={}/encode.pt2", "a={}/decode.pt2", "-o", "{}/x"], "method a is given twice"),
        (
            ["bundle", "a={}/encode.pt2", "--prefix", "b=x.", "-o", "{}/x"],
            "a prefix was passed for 'b', but the methods",
        ),
        (["bundle", "a={}/none.pt2", "-o", "{}/x"], "No such file"),
        (["bundle", "a={}/bound.pt2", "-o", "{}/x"], "is a bundle of the methods"),
        (["inspect", "hf:gpt2", "--method", "a"], "apply to archives, not to models"),
    ],
)
def test_wrong_use_is_one_line_and_writes_nothing(command, message, folder, capsys):
    assert main([word.format(folder) for word in command]) == 2

    error = capsys.readouterr().err
    assert message in error
    assert len(error.splitlines()) == 1
    assert not (folder / "x").exists()
