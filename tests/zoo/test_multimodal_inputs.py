"""Inputs of models that see or listen: the program uses every tower, and gives what eager mode gives."""

from __future__ import annotations

from collections.abc import Iterator

import pytest
import torch
from torch import nn

import fakexport as fe
from fakexport.models.sources import resolve
from fakexport.models.sources.components.component_places import FORWARD, places
from tests.architectures import ARCHITECTURES
from tests.architectures.architecture import Architecture
from tests.architectures.sample import sampled

pytest.importorskip("transformers")
pytestmark = [
    pytest.mark.zoo,
    pytest.mark.filterwarnings("ignore::UserWarning"),
    pytest.mark.filterwarnings("ignore::FutureWarning"),
    pytest.mark.filterwarnings("ignore::DeprecationWarning"),
]

# docs/components.md has the same list. Every one has inputs whose values say where an image is or how long a
# sound, or placeholder tokens.
NAMES = """
    aria audioflamingo3 aya_vision blip-2 chameleon colmodernvbert colpali colqwen2 cosmos3_edge
    deepseek_vl deepseek_vl_hybrid embedding_gemma2 exaone4_5 flava fuyu gemma3 gemma4 glm46v
    glm4v glm4v_moe glm5_next glm_ocr glmasr got_ocr2 granite_docling granite_speech hunyuan_vl
    hyperclovax_vision_v2
    idefics idefics2 idefics3 instructblip internvl janus kimi_k25 kosmos-2 kosmos-2.5 lfm2_vl lfm3_vl
    lighton_ocr llama4 llava llava_next llava_next_video llava_onevision minicpm_ocr minicpmv4_6 minicpmv4_7
    mistral3 mllama moss_transcribe_diarize muse_glimmer musicflamingo nemotron_h_omni ovis2
    paddleocr_vl paligemma qwen2_5_omni_thinker qwen2_5_vl qwen2_audio qwen2_vl qwen3_5 qwen3_asr
    qwen3_omni_moe_thinker qwen3_vl shieldgemma2 siglip2 smolvlm t5gemma2 ultravbert video_llama_3 vipllava
    voxtral
"""
IN_EVERY_RUN = ("idefics3", "mllama", "qwen2_audio")
# Of these only the images and sounds are tested.
OTHERS = [
    Architecture(model_type, "AutoModelForMultimodalLM", is_common=False)
    for model_type in ("cosmos3_edge", "glm5_next", "nemotron_h_omni")
] + [Architecture("qwen2_5_omni_thinker", "Qwen2_5OmniThinkerForConditionalGeneration", is_common=False)]
OF_TYPE = {architecture.model_type: architecture for architecture in (*ARCHITECTURES, *OTHERS)}


def towers(module: nn.Module) -> Iterator[tuple[str, set[str]]]:
    """Each module that reads an image, a sound or text, with the names of its parameters."""
    for place in places(module):
        if place.method == FORWARD and place.path and place.role in ("vision", "audio", "connector", "text"):
            inside = module.get_submodule(place.path)
            yield place.path, {f"{place.path}.{name}" for name, _ in inside.named_parameters()}


def loud(module: nn.Module) -> nn.Module:
    """The module with weights that are drawn again: gates that start at zero hide a whole tower, and so do
    codebooks, which are buffers.
    """
    torch.manual_seed(0)
    with torch.no_grad():
        for name, buffer in module.named_buffers():
            if name.endswith("codebook.embed_sum"):
                buffer.copy_(torch.randn_like(buffer))
        for parameter in module.parameters():
            if parameter.is_floating_point():
                parameter.copy_(0.2 * torch.randn_like(parameter) + (parameter.dim() < 2))
    return module.eval()


@pytest.mark.parametrize(
    "model_type", sampled(NAMES.split(), in_every_run=IN_EVERY_RUN, in_ci=["llava_next"])
)
def test_every_tower_is_in_the_program_and_gives_what_eager_gives(model_type, tmp_path):
    if not OF_TYPE[model_type].is_available:
        pytest.skip(f"this transformers has no {model_type}")
    source = resolve(OF_TYPE[model_type].source(tmp_path))
    model = loud(source.factory())

    program = fe.export(source)

    found = source.example_inputs(model, "cpu", None)
    assert found.omitted == {}
    contents = [name for name, value in found.kwargs.items() if _is_content(value)]
    assert contents
    used = {name for name in program.state_dict if _is_read(program, name)}
    unused = [path for path, names in towers(model) if names and not names & used]
    assert unused == UNUSED.get(model_type, [])

    bound = fe.bind(program, dict(model.state_dict())).module()
    noise = torch.Generator().manual_seed(1)
    given = {
        name: torch.randn(value.shape, generator=noise) if name in contents else value
        for name, value in found.kwargs.items()
    }
    if "flattened_patches" in given:  # the first two numbers of a patch say where it is
        given["flattened_patches"][..., :2] = 1
    expected = _first(_eager(model, given))
    torch.testing.assert_close(_first(bound(**given)), expected, rtol=1e-4, atol=1e-4)
    for name in contents:
        other = _first(bound(**{**given, name: given[name] + 1}))
        assert not torch.allclose(other, expected), f"the program does not look at {name}"


@pytest.mark.parametrize("model_type", sampled(NAMES.split(), in_every_run=["idefics3"], in_ci=["glmasr"]))
def test_it_exports_for_a_gpu(model_type, tmp_path):
    if not OF_TYPE[model_type].is_available:
        pytest.skip(f"this transformers has no {model_type}")

    source = resolve(OF_TYPE[model_type].source(tmp_path))

    program = fe.export(source, target="H100")

    assert {str(value.device) for value in program.state_dict.values()} == {"cuda:0"}
    # Some values cannot be computed where their device is not there: that must leave out no input.
    assert program.example_inputs is not None
    on_cpu = source.example_inputs(source.factory(), "cpu", None)
    assert list(program.example_inputs[1]) == list(on_cpu.kwargs)


# Modules that make images, and that no call of forward uses.
UNUSED: dict[str, list[str]] = {}


def _is_content(value):
    return isinstance(value, torch.Tensor) and value.is_floating_point() and value.unique().numel() == 1


def _is_read(program, name):
    graph = {node.name: node for node in program.graph.nodes}
    return any(
        spec.target == name and graph[spec.arg.name].users for spec in program.graph_signature.input_specs
    )


def _eager(model, given):
    with torch.no_grad():
        return model(**given, **({"use_cache": False} if hasattr(model, "generate") else {}))


def _first(output):
    """The logits, else the first tensor."""
    named = dict(output.items()) if hasattr(output, "items") else {}
    value = named.get("logits")
    if value is None:
        value = next(
            leaf
            for leaf in torch.utils._pytree.tree_leaves(tuple(named.values()) or output)
            if isinstance(leaf, torch.Tensor)
        )
    return value
