"""Small models of diffusers: export, save, load, bind what `save_pretrained` wrote, compare with eager."""

import json
from contextlib import nullcontext
from typing import Any

import pytest
import torch

import fakexport as fe
from fakexport._torch.pytree import tree_leaves, tree_map
from fakexport.models.sources import resolve
from fakexport.models.sources.diffusers.diffusers_halves import half_inputs
from fakexport.models.sources.diffusers.diffusers_inputs import derive_inputs
from tests.diffusers_classes import CLASSES, MODELS
from tests.small_diffusers import saved_model, saved_pipeline

diffusers = pytest.importorskip("diffusers")
transformers = pytest.importorskip("transformers")
TEXT_ENCODERS = {"text_encoder": "CLIPTextModel", "text_encoder_2": "T5EncoderModel"}
DIFFUSERS = {"unet": "UNet2DConditionModel", "vae_decoder": "AutoencoderKL"}
# Their forward depends on values: of masks, numbers, and experts. One draws noise.
NOT_EXPORTED = {
    "AceStepConditionEncoder",
    "BriaFibo2Transformer2DModel",
    "HiDreamImageTransformer2DModel",
    "HunyuanVideo15Transformer3DModel",
    "HunyuanVideoFramepackTransformer3DModel",
    "LTX2VideoDiffusionDecoderModel",
    "QwenImage21Transformer2DModel",
}
pytestmark = [
    pytest.mark.slow,
    pytest.mark.zoo,
    # The other half of an autoencoder, of which the program has none.
    pytest.mark.filterwarnings("ignore:FE704"),
    pytest.mark.filterwarnings("ignore:`torch.nn.utils.weight_norm`"),
    pytest.mark.filterwarnings("ignore:The tensor attributes"),
    pytest.mark.filterwarnings("ignore:flex_attention called without torch.compile"),
]


@pytest.mark.parametrize("name", MODELS)
def test_a_bound_program_computes_what_the_model_does(name, tmp_path):
    model = saved_model(name, tmp_path / "model")
    half = name.partition("/")[2]
    spec = f"diffusers:{tmp_path / 'model'}" + (f"/{half}" if half else "")
    fe.save(fe.export(spec, dynamic_shapes="auto"), tmp_path / "program.pt2")

    program = fe.bind(fe.load(tmp_path / "program.pt2"), tmp_path / "model")

    for batch in (2, 3):
        inputs = drawn(spec, batch)
        assert_same(program.module()(**inputs), expected(model, half, inputs))


@pytest.mark.parametrize(
    "name",
    [
        pytest.param(name, marks=() if at % 8 == 0 else pytest.mark.exhaustive)
        for at, name in enumerate(sorted(CLASSES.keys() - NOT_EXPORTED))
    ],
)
def test_a_program_with_the_inputs_of_its_class_computes_what_the_model_does(name, tmp_path):
    torch.manual_seed(0)
    model = getattr(diffusers, name).from_config(CLASSES[name]["settings"]).eval()
    with torch.no_grad():
        for parameter in model.parameters():
            if not parameter.any():
                parameter.normal_(std=0.05)
    model.save_pretrained(tmp_path / "model")
    spec = f"diffusers:{tmp_path / 'model'}"
    # On the CPU, flex_attention has no gradients, and refuses to run where they are kept.
    with torch.no_grad() if name.startswith("Kandinsky6SR") else nullcontext():
        fe.save(fe.export(spec), tmp_path / "program.pt2")

        program = fe.bind(fe.load(tmp_path / "program.pt2"), tmp_path / "model")

    inputs = drawn(spec, 2, are_ids_kept=True)
    with torch.no_grad():
        found = program.module()(**inputs)
    assert_same(found, expected(model, "", inputs))


@pytest.mark.parametrize("part", ["text_encoder", "text_encoder_2", "unet", "vae_decoder"])
def test_a_model_of_a_pipeline_computes_what_it_does_alone(part, tmp_path):
    saved_pipeline(tmp_path / "pipeline")
    folder = tmp_path / "pipeline" / part.removesuffix("_decoder")
    spec = f"diffusers:{tmp_path / 'pipeline'}"
    fe.save(fe.export(spec, component=part, dynamic_shapes="auto"), tmp_path / "program.pt2")

    program = fe.bind(fe.load(tmp_path / "program.pt2"), folder)

    if part.startswith("text_encoder"):
        model = getattr(transformers, TEXT_ENCODERS[part]).from_pretrained(folder)
        ids = {
            "input_ids": torch.arange(1, 19).view(2, 9),
            "attention_mask": torch.ones(2, 9, dtype=torch.int64),
        }
        truth = model(**ids, output_hidden_states=True)
        assert_same(program.module()(**ids)["hidden_states"], truth.hidden_states)
    else:
        model = getattr(diffusers, DIFFUSERS[part]).from_pretrained(folder)
        half = "decoder" if part == "vae_decoder" else ""
        inputs = drawn(f"diffusers:{folder}" + (f"/{half}" if half else ""), 3)
        assert_same(program.module()(**inputs), expected(model, half, inputs))


@pytest.mark.alone
@pytest.mark.parametrize(
    "name", ["flux1-dev.json", "sdxl-unet.json", "sdxl-vae.json/decoder", "sdxl-vae.json/encoder"]
)
def test_a_published_model_exports_on_an_h100(name):
    report = fe.check(f"diffusers:examples/configs/{name}", target="H100", dtype="bfloat16")

    assert report.is_clean, report.diagnostics
    assert report.verdicts[0].summary.devices == ("cuda:0",)


@pytest.mark.filterwarnings("ignore")  # of torch.compile, in its own code
def test_a_model_that_compiles_its_attention_is_checked(tmp_path):
    """torch.compile asks for the origin of each input of flex_attention, also of a block that was copied."""
    name = "Kandinsky6SRTransformer3DModel"
    settings = {"_class_name": name, **CLASSES[name]["settings"], "num_visual_blocks": 8}
    (tmp_path / "config.json").write_text(json.dumps(settings))

    report = fe.check(f"diffusers:{tmp_path}", target="H100", dtype="bfloat16")

    assert report.is_clean, report.diagnostics


def drawn(spec: str, batch: int, *, are_ids_kept: bool = False) -> dict[str, Any]:
    module = resolve(spec).factory()
    derive = half_inputs if hasattr(module, "encode") else derive_inputs
    torch.manual_seed(batch)

    def draw(value):
        if not isinstance(value, torch.Tensor):
            return value
        if value.is_floating_point():
            return torch.randn_like(value)
        return value if value.dtype is torch.bool or are_ids_kept else torch.randint_like(value, 10)

    return tree_map(draw, dict(derive(module, "cpu", torch.float32, batch=batch).kwargs))


@torch.no_grad()
def expected(model: Any, half: str, inputs: dict[str, Any]) -> Any:
    if half == "decoder":
        return model.decode(inputs["latents"]).sample
    if half == "encoder":
        encoded = model.encode(inputs["sample"])
        found = getattr(encoded, "latent_dist", None)
        return encoded.latents if found is None else {"mean": found.mean, "std": found.std}
    return model(**inputs)


def assert_same(found: Any, truth: Any) -> None:
    pairs = list(zip(tree_leaves(found), tree_leaves(truth), strict=True))
    assert pairs
    for one, other in pairs:
        assert other.abs().max() > 0
        torch.testing.assert_close(one, other, rtol=1e-4, atol=1e-5)
