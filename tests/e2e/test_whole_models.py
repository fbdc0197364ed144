"""A clean verdict is about all of the model: images included, or the report says what is missing."""

import json
import re
import shlex
import sys
from collections.abc import Callable
from pathlib import Path

import pytest
import torch
import transformers

import fakexport as fe
from fakexport.cli import main
from fakexport.models.sources import resolve
from tests.architectures.architecture import Architecture
from tests.unit.models.sources.tiny_configs import TEXT

Run = Callable[..., tuple[int, str]]


@pytest.fixture
def run(capsys):
    """Runs the command in this process; gives exit code and stdout."""

    def run(*arguments: object) -> tuple[int, str]:
        code = main([*map(str, arguments), "--no-progress"])
        return code, capsys.readouterr().out

    return run


def source_of(model_type: str, folder: Path) -> str:
    return Architecture(model_type, "AutoModelForImageTextToText", True).source(folder)


def test_qwen2_vl_exports_with_its_vision_tower_and_as_torch_exports_the_real_model(run, tmp_path):
    spec = source_of("qwen2_vl", tmp_path)
    archive = tmp_path / "program.pt2"

    code, text = run("export", spec, "-o", archive)
    program = fe.load(archive)

    assert code == 0, text
    assert "1 of 1 target exports; 0 errors, 0 warnings" in text
    source = resolve(spec)
    module = source.factory()
    inputs = source.example_inputs(module, "cpu", None)
    with source.tracing(module, inputs):
        real = torch.export.export(module, (), dict(inputs.kwargs))
    assert [str(node.target) for node in program.graph.nodes] == [
        str(node.target) for node in real.graph.nodes
    ]
    used = {spec.target for spec in real.graph_signature.input_specs if "visual" in (spec.target or "")}
    assert len(used) > 20


@pytest.mark.slow
def test_a_model_without_its_vision_tower_is_not_clean_and_the_printed_fix_works(run, tmp_path):
    spec = source_of("unlimited_ocr", tmp_path)

    code, text = run("check", spec, "--target", "cpu", "--target", "H100", "--format", "json")
    report = json.loads(text)

    (found,) = report["diagnostics"]
    assert (code, report["is_clean"]) == (1, False)
    assert (found["code"], found["severity"], found["targets"]) == ("FE104", "warning", ["cpu", "H100"])
    assert found["notes"][0].startswith("pixel_values was not provided: ")
    lost, whole = map(int, re.findall(r"[0-9]+", found["notes"][1].replace(",", ""))[:2])
    module = resolve(spec).factory()
    gone = (
        *("model.view_separator", "model.image_newline"),
        *("model.vision_tower", "model.multi_modal_projector"),
    )
    assert whole == sum(parameter.numel() for parameter in module.parameters())
    assert lost == sum(p.numel() for name, p in module.named_parameters() if name.startswith(gone))
    assert found["notes"][1].endswith(f"parameters: {', '.join(gone)}")

    options = shlex.split(found["fix"]["message"].partition(", pass ")[2])
    code, text = run("check", spec, *options)

    assert code == 0, text
    assert "note: the program does not use" in text
    assert "model.vision_tower" in text


def test_a_failure_for_want_of_an_omitted_input_names_it(run, tmp_path, monkeypatch):
    def fails(*args: object) -> bool:
        raise NotImplementedError("the model stops here")

    spec = source_of("inkling2", tmp_path)
    monkeypatch.setattr("fakexport._torch.kernels.fp8_products._check", fails)

    code, text = run("check", spec, "--target", "H100")

    assert code == 1
    assert "warning[FE104]: model was traced without one of its inputs" in text
    assert "pixel_values was not provided: no part of the model has the input grid_thw" in text
    assert "the export may have failed because these inputs are missing: pixel_values" in text
    assert "error[FE202]" in text


PRETRAINED = """
from transformers import AutoModelForCausalLM
import torch


def factory():
    model = AutoModelForCausalLM.from_pretrained({folder!r})
    return model, (torch.ones(2, 8, dtype=torch.long),)


def needs_arguments(folder):
    return AutoModelForCausalLM.from_pretrained(folder)


def misses_a_package():
    import skimage
"""


@pytest.fixture
def pretrained(tmp_path):
    """A file with a factory that loads a checkpoint folder."""
    config = transformers.LlamaConfig(**TEXT, tie_word_embeddings=True)
    transformers.LlamaForCausalLM(config).to(torch.bfloat16).save_pretrained(tmp_path / "checkpoint")
    path = tmp_path / "model.py"
    path.write_text(PRETRAINED.format(folder=str(tmp_path / "checkpoint")))
    return path


@pytest.mark.slow
def test_a_factory_that_loads_a_checkpoint_gives_the_program_of_the_real_model(run, pretrained, tmp_path):
    code, text = run("check", f"{pretrained}:factory", "--target", "H100", "--target", "cpu")
    assert code == 0, text
    code, text = run("export", f"{pretrained}:factory", "-o", tmp_path / "program.pt2")
    assert code == 0, text

    real = transformers.AutoModelForCausalLM.from_pretrained(tmp_path / "checkpoint")
    ids = torch.ones(2, 8, dtype=torch.long)
    program = fe.load(tmp_path / "program.pt2")
    fe.export(real, (ids,))  # registers the cache with torch
    stock = torch.export.export(real, (ids,))
    assert [str(node.target) for node in program.graph.nodes] == [
        str(node.target) for node in stock.graph.nodes
    ]
    bound = fe.bind(tmp_path / "program.pt2", tmp_path / "checkpoint")
    with torch.no_grad():
        torch.testing.assert_close(bound.module()(ids)["logits"], real(ids).logits)


def test_a_bad_factory_is_one_line_or_a_finding_with_a_fix(run, pretrained, capsys):
    capsys.readouterr()  # what transformers says while it saves
    assert main(["check", f"{pretrained}:needs_arguments", "--no-progress"]) == 2
    assert capsys.readouterr().err.splitlines() == [
        f"error: {pretrained}:needs_arguments requires arguments (folder), but a factory is called without "
        "any: write a function that passes them"
    ]

    code, text = run("check", f"{pretrained}:misses_a_package")

    assert code == 1
    assert f"= fix: run `{sys.executable} -m pip install scikit-image`" in text


def test_a_quantized_config_is_not_clean_until_its_quantization_is_removed(run, tmp_path):
    settings = {"model_type": "llama", "architectures": ["LlamaForCausalLM"], **TEXT, "vocab_size": 64}
    path = tmp_path / "config.json"
    path.write_text(json.dumps({**settings, "quantization_config": {"quant_method": "fp8"}}))

    code, text = run("check", f"hf:{path}", "--target", "A100")  # which has no fp8

    assert code == 1
    assert "warning[FE105]: quantized model checked without its quantization" in text
    assert "the published weights are quantized (fp8)" in text
    assert "compute capability >= 8.9" in text

    path.write_text(json.dumps(settings))
    code, text = run("check", f"hf:{path}", "--target", "H100")

    assert code == 0, text
