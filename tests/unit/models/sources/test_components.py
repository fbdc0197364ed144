"""Parts of a multimodal model: together they compute what the whole model does in eager mode."""

from __future__ import annotations

import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import nn
from torch.utils._pytree import tree_leaves
from transformers import SamConfig, SamModel

import fakexport as fe
from fakexport.models.sources import resolve
from tests.architectures import ARCHITECTURES
from tests.generation.families import NAMED

# The checkpoint of the whole model has keys that a part does not use.
pytestmark = pytest.mark.filterwarnings("ignore::fakexport.WeightsWarning")
SAMPLES = {architecture.model_type: architecture for architecture in ARCHITECTURES}


def composed(programs: Mapping[str, Any], given: Mapping[str, torch.Tensor]) -> Any:
    """Run the parts in order; each takes inputs of the whole model and results of those before it by name."""
    values, result = dict(given), None
    with torch.no_grad():
        for name, program in programs.items():
            result = program.module()(**{key: values[key] for key in program.example_inputs[1]})
            values |= {f"{name}_{key}": value for key, value in result.items()}
    return result


def eager(module: nn.Module, given: Mapping[str, torch.Tensor]) -> Any:
    with torch.no_grad():
        return module(**given, **({"use_cache": False} if hasattr(module, "generate") else {}))


def loud(module: nn.Module) -> nn.Module:
    """The module with weights so large that a missing step shows."""
    torch.manual_seed(0)
    with torch.no_grad():
        for parameter in module.parameters():
            if parameter.is_floating_point():
                parameter.copy_(0.3 * torch.randn_like(parameter))
    return module.eval()


def given_to(module: nn.Module, spec: str) -> dict[str, torch.Tensor]:
    """Inputs of the whole model, with noise for what is not a number of tokens or positions."""
    found = resolve(spec).example_inputs(module, "cpu", None).kwargs
    noise = torch.Generator().manual_seed(1)
    return {
        name: torch.randn(value.shape, generator=noise)
        if isinstance(value, torch.Tensor) and value.is_floating_point()
        else value
        for name, value in found.items()
    }


@pytest.fixture(scope="module")
def llava(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, nn.Module]:
    folder = tmp_path_factory.mktemp("llava")
    return folder, NAMED["llava"].saved(folder)


@pytest.fixture(scope="module")
def parts(llava: tuple[Path, nn.Module]) -> dict[str, Any]:
    folder, _ = llava
    spec = f"hf:{folder}"
    return {name: fe.export(spec, component=name) for name in fe.components(spec)}


@pytest.fixture(scope="module")
def bound(llava: tuple[Path, nn.Module], parts: dict[str, Any]) -> Any:
    folder, _ = llava
    fe.save_bundle(parts, folder / "parts.pt2")
    return fe.bind(fe.load_bundle(folder / "parts.pt2"), folder)


@pytest.mark.slow
def test_the_parts_of_one_bundle_compute_what_the_whole_model_does(llava, bound):
    folder, model = llava
    given = given_to(model, f"hf:{folder}")

    logits = composed(bound, given)["logits"]

    assert list(bound) == ["vision", "language"]
    assert torch.equal(logits, eager(model, given)["logits"])
    other = {**given, "pixel_values": given["pixel_values"].flip(0)}
    assert not torch.equal(composed(bound, other)["logits"], logits)


def test_each_part_has_its_weights_under_the_names_of_the_whole_model(llava, parts):
    _, model = llava
    vision, language = (set(parts[name].state_dict) for name in ("vision", "language"))

    assert all(name.startswith(("model.vision_tower.", "model.multi_modal_projector.")) for name in vision)
    assert all(name.startswith(("model.language_model.", "lm_head.")) for name in language)
    # The last layer, whose features LLaVA does not use, and the norm after it are in no part.
    unused = {name for name, _ in model.named_parameters()} - vision - language
    assert all(name.startswith("model.vision_tower.") for name in unused)
    assert all(".layers.1." in name or "post_layernorm" in name for name in unused)


def test_a_checkpoint_without_a_weight_of_the_part_is_not_bound(llava, parts):
    _, model = llava
    of_the_text = {name: value for name, value in model.state_dict().items() if "vision_tower" not in name}

    with pytest.raises(fe.BindError, match="vision_tower"):
        fe.bind(parts["vision"], of_the_text)


@pytest.mark.parametrize(
    ("name", "line"),
    [
        (
            "nope",
            "has no component 'nope'; use vision, language, connector, or one of its modules: model.vision",
        ),
        ("layers", "'layers' matches several modules of|does not call model.language_model.layers"),
    ],
)
def test_an_unknown_part_is_one_line_that_lists_those_that_exist(name, line, llava):
    folder, _ = llava

    with pytest.raises(fe.SourceError, match=line) as raised:
        fe.export(f"hf:{folder}", component=name)
    assert "\n" not in str(raised.value)


def test_what_has_no_parts_is_one_line(llava):
    folder, _ = llava
    inputs = (torch.zeros(1, 2),)

    with pytest.raises(fe.SourceError, match="--component supports hf: and diffusers: models"):
        fe.export(nn.Linear(2, 2), inputs, component="vision")
    with pytest.raises(fe.SourceError, match="only hf: models have components"):
        fe.components(lambda: nn.Linear(2, 2))
    with pytest.raises(fe.SourceError, match="do not pass inputs"):
        fe.export(f"hf:{folder}", inputs, component="vision")
    with pytest.raises(fe.SourceError, match="supports --workload forward, prefill and decode, not chunk"):
        fe.export(f"hf:{folder}", component="vision", workload="chunk")


def checked(model: nn.Module, spec: str, folder: Path, given: Mapping[str, torch.Tensor]) -> Any:
    programs = {name: fe.export(spec, component=name) for name in fe.components(spec)}
    fe.save_bundle(programs, folder / "parts.pt2")
    return composed(fe.bind(fe.load_bundle(folder / "parts.pt2"), dict(model.state_dict())), given)


@pytest.mark.slow
@pytest.mark.parametrize("name", ["gemma3_image", "whisper"])
def test_parts_of_small_published_layouts_compute_what_the_whole_model_does(name, tmp_path):
    model = NAMED[name].saved(tmp_path)
    spec = f"hf:{tmp_path}"
    given = given_to(model, spec)

    found = checked(model, spec, tmp_path, given)

    torch.testing.assert_close(found["logits"], eager(model, given)["logits"], rtol=1e-4, atol=1e-4)


# Grids and windows; features for several layers (deepstack); tiles in cross-attention; sounds; images that
# are dropped where they are padding; tiles of sizes that are fixed; two towers; query tokens.
@pytest.mark.parametrize(
    "name",
    [
        *(
            pytest.param(name, marks=pytest.mark.slow)
            for name in ("mllama", "qwen2_5_vl", "qwen3_vl", "voxtral")
        ),
        *(
            pytest.param(name, marks=pytest.mark.exhaustive)
            for name in (
                *("clip", "qwen2_vl", "siglip", "blip-2", "instructblip", "florence2", "internvl"),
                *("idefics3", "llava_next", "gemma4", "ovis2", "qwen3_asr"),
            )
        ),
    ],
)
def test_parts_of_a_family_compute_what_the_whole_model_does(name, tmp_path):
    spec = SAMPLES[name].source(tmp_path)
    if name == "qwen3_vl":
        path = next(tmp_path.glob("*.json"))
        config = json.loads(path.read_text())
        config["vision_config"]["deepstack_visual_indexes"] = [0, 1]
        path.write_text(json.dumps(config))
    model = loud(resolve(spec).factory())
    given = given_to(model, spec)
    expected = eager(model, given)
    lead = "logits" if "logits" in expected else "logits_per_image"

    found = checked(model, spec, tmp_path, given)

    torch.testing.assert_close(found[lead], expected[lead], rtol=1e-4, atol=1e-4)


@pytest.mark.slow
@pytest.mark.parametrize(("name", "part", "number"), [("kimi_k25", "vision", "image_grid_thw")])
def test_a_part_takes_as_numbers_what_the_whole_model_reads_as_numbers(name, part, number, tmp_path):
    spec = SAMPLES[name].source(tmp_path)
    model = loud(resolve(spec).factory())
    program = fe.bind(fe.export(spec, component=part), model.state_dict())
    given = dict(program.example_inputs[1])
    rows = given[number]

    assert rows == given_to(model, spec)[number]
    assert program.module()(**given)
    with pytest.raises((AssertionError, RuntimeError, ValueError)):
        program.module()(**{**given, number: [[1, 2 * high, wide // 2] for _, high, wide in rows]})
    with pytest.raises((AssertionError, RuntimeError, ValueError)):
        program.module()(**{**given, number: torch.tensor(rows)})


@pytest.mark.slow
def test_the_mask_of_qwen2_audio_is_that_of_the_documentation(tmp_path):
    """Its encoder takes one that the model computes; two sounds here, of 32 and of 24 frames."""
    family = NAMED["qwen2_audio"]
    model = family.saved(tmp_path)
    programs = {name: fe.export(f"hf:{tmp_path}", component=name) for name in fe.components(f"hf:{tmp_path}")}
    bound = fe.bind(fe.Bundle(programs), tmp_path)
    length = next(iter(programs["language"].example_inputs[1].values())).shape[1]
    ids = torch.randint(5, 90, (2, length), generator=torch.Generator().manual_seed(1))
    ids[0, :8] = ids[1, :6] = model.config.audio_token_id
    given = {
        "input_ids": ids,
        "attention_mask": torch.ones_like(ids),
        "input_features": torch.randn(2, 8, 32, generator=torch.Generator().manual_seed(2)),
        "feature_attention_mask": (torch.arange(32) < torch.tensor([[32], [24]])).long(),
    }

    steps = (given["feature_attention_mask"].sum(-1) - 1) // 2 + 1
    mask = (torch.arange(16) < steps[:, None])[:, None, None, :].expand(-1, 1, 16, 16)
    features = fe.run(bound["audio"], {"input_features": given["input_features"], "attention_mask": mask})
    found = fe.run(
        bound["language"], {**given, **{f"audio_{name}": value for name, value in features.items()}}
    )["logits"]

    torch.testing.assert_close(found, eager(model, given).logits, rtol=1e-4, atol=1e-4)
    given["feature_attention_mask"][1, 20:] = 0
    with pytest.raises(fe.DeployError, match="Runtime assertion failed"):
        fe.run(bound["language"], {**given, "audio_last_hidden_state": features["last_hidden_state"]})


@pytest.mark.slow
def test_a_tied_weight_is_one_in_each_part(tmp_path):
    from transformers import AutoConfig

    config = AutoConfig.from_pretrained(_config(tmp_path))
    assert config.tie_word_embeddings
    program = fe.export(f"hf:{tmp_path / 'llava'}", component="language")

    head, embedding = (
        program.state_dict[name] for name in ("lm_head.weight", "model.language_model.embed_tokens.weight")
    )
    assert head is embedding


def _config(folder: Path) -> Path:
    from transformers import LlavaConfig

    config = NAMED["llava"].config
    text = {**config["text_config"], "tie_word_embeddings": True}
    tied = {**config, "tie_word_embeddings": True, "text_config": text}
    LlavaConfig(**tied).save_pretrained(folder / "llava")
    return folder / "llava"


@pytest.mark.slow
def test_sizes_that_may_vary_are_right_at_others(llava):
    folder, model = llava
    program = fe.bind(fe.export(f"hf:{folder}", component="language", dynamic_shapes="auto"), folder)
    given = given_to(model, f"hf:{folder}")
    longer = torch.arange(5, 12).repeat(2, 1)
    text = {"input_ids": torch.cat([given["input_ids"], longer], dim=1)}
    text["attention_mask"] = torch.ones_like(text["input_ids"])
    pixels = given["pixel_values"]

    with torch.no_grad():
        features = model.model.get_image_features(pixels).pooler_output
        features = torch.cat(list(features)) if isinstance(features, (list, tuple)) else features
        found = program.module()(**text, vision_pooler_output=features.reshape(-1, features.shape[-1]))

    assert torch.equal(found["logits"], eager(model, {**text, "pixel_values": pixels})["logits"])
    with pytest.raises((RuntimeError, AssertionError)):  # The check of the model, kept in the program.
        program.module()(**text, vision_pooler_output=features.reshape(-1, features.shape[-1])[1:])


@pytest.mark.slow
def test_all_parts_are_one_file_from_the_command_line(llava, tmp_path, capsys):
    from fakexport.cli import main

    folder, model = llava
    spec, path = f"hf:{folder}", tmp_path / "parts.pt2"

    assert main(["export", spec, "--component", "all", "--no-progress", "-o", str(path)]) == 0
    assert list(fe.load_bundle(path)) == ["vision", "language"]
    assert main(["check", spec, "--component", "nope", "--no-progress"]) == 2
    assert "use vision, language, connector, or one of its modules" in capsys.readouterr().err
    given = given_to(model, spec)
    found = composed(fe.bind(fe.load_bundle(path), folder), given)
    assert torch.equal(found["logits"], eager(model, given)["logits"])


def test_a_module_may_be_named_by_its_class(llava):
    found, expected = (
        fe.export(f"hf:{llava[0]}", component=name) for name in ("CLIPVisionModel", "model.vision_tower")
    )

    assert found.graph_module.code == expected.graph_module.code


@pytest.mark.slow
def test_a_mask_decoder_computes_what_it_does_in_the_whole_model():
    module = loud(SamModel(SamConfig()))
    program = fe.export("hf:sam", component="SamMaskDecoder")
    given = {
        name: torch.randn(value.shape) if value.is_floating_point() else torch.ones_like(value)
        for name, value in program.example_inputs[1].items()
    }

    with torch.no_grad():
        masks, scores = module.mask_decoder(**given, multimask_output=True)
        found = tree_leaves(fe.bind(program, module.state_dict()).module()(**given))

    assert torch.allclose(found[0], masks, rtol=1e-4, atol=1e-4)
    assert torch.allclose(found[1], scores, rtol=1e-4, atol=1e-4)
