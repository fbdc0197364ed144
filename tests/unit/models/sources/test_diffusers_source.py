"""`diffusers:` sources: what they name, which inputs they derive, and one line for what they cannot."""

import json
import re
import sys

import pytest
import torch

import fakexport as fe
from fakexport.models.sources import SourceError, component_source, resolve
from fakexport.models.sources.diffusers.diffusers_inputs import derive_inputs
from tests.diffusers_classes import HALVES, MODELS
from tests.hub_server import COMMIT, local_hub
from tests.small_diffusers import saved_pipeline

diffusers = pytest.importorskip("diffusers")


@pytest.fixture(scope="module")
def pipeline(tmp_path_factory):
    folder = tmp_path_factory.mktemp("pipeline")
    saved_pipeline(folder)
    return folder


def module_of(name):
    class_name, settings = MODELS[name].values()
    return getattr(diffusers, class_name).from_config(dict(settings)).eval()


def shapes(module):
    inputs = derive_inputs(module, "cpu", None)
    return {name: list(value.shape) for name, value in inputs.kwargs.items() if hasattr(value, "shape")}


def test_a_folder_is_built_untrained_in_eval_mode_with_its_own_class(pipeline):
    source = resolve(f"diffusers:{pipeline / 'unet'}")

    module = source.factory()

    assert source.kind == "diffusers"
    assert type(module) is diffusers.UNet2DConditionModel
    assert not module.training


@pytest.mark.parametrize("spec", ["unet", "unet/config.json"])
def test_a_component_is_the_same_by_path_and_by_option(pipeline, spec):
    by_path = resolve(f"diffusers:{pipeline}/{spec}").factory()
    by_option = component_source(resolve(f"diffusers:{pipeline}"), "unet").factory()

    assert dict(by_path.config) == dict(by_option.config)


def test_the_conditions_of_sdxl_are_inputs():
    inputs = derive_inputs(module_of("sdxl-unet"), "cpu", None)

    added = inputs.kwargs["added_cond_kwargs"]
    assert {name: list(value.shape) for name, value in added.items()} == {
        "text_embeds": [2, 10],
        "time_ids": [2, 6],
    }
    assert "added_cond_kwargs: pooled text embeddings of size 10, and 6 time ids" in inputs.assumptions


@pytest.mark.parametrize(("total", "ids"), [(2816, 6), (2560, 5)])
def test_sdxl_and_its_refiner_have_their_own_number_of_time_ids(total, ids):
    """The config names only a sum: 1280 + 6·256, or 1280 + 5·256. Both splits would run."""
    settings = {**MODELS["sdxl-unet"]["settings"], "addition_time_embed_dim": 256}
    settings["projection_class_embeddings_input_dim"] = total
    unet = diffusers.UNet2DConditionModel.from_config(settings)

    added = derive_inputs(unet, "cpu", None).kwargs["added_cond_kwargs"]

    assert added["text_embeds"].shape == (2, 1280)
    assert added["time_ids"].shape == (2, ids)


@pytest.mark.parametrize(
    ("name", "given"),
    [
        ("sd15-unet", {"sample", "timestep", "encoder_hidden_states"}),
        ("lcm-unet", {"sample", "timestep", "encoder_hidden_states", "timestep_cond"}),
        ("upscaler-unet", {"sample", "timestep", "encoder_hidden_states", "class_labels"}),
        ("ddpm-unet", {"sample", "timestep"}),
        ("dit", {"hidden_states", "timestep", "class_labels"}),
        ("pixart", {"hidden_states", "encoder_hidden_states", "timestep", "encoder_attention_mask"}),
    ],
)
def test_what_the_config_asks_for_is_given_and_nothing_else(name, given):
    assert shapes(module_of(name)).keys() == given


@pytest.mark.parametrize("has_guidance", [True, False])
def test_guidance_is_an_input_where_the_config_says_so(has_guidance):
    settings = {**MODELS["flux"]["settings"], "guidance_embeds": has_guidance}

    found = shapes(diffusers.FluxTransformer2DModel.from_config(settings))

    assert ("guidance" in found) is has_guidance
    assert found["img_ids"] == [1024, 3]


def test_optional_inputs_that_are_left_out_are_named():
    notes = derive_inputs(module_of("sd15-unet"), "cpu", None).assumptions

    (left_out,) = (note for note in notes if note.startswith("omitted optional inputs"))
    assert "mid_block_additional_residual" in left_out
    assert "class_labels" not in left_out


def test_the_size_is_that_of_the_config_or_is_named():
    with_size, without = module_of("sd15-unet"), module_of("controlnet")

    assert not [note for note in derive_inputs(with_size, "cpu", None).assumptions if "size" in note]
    assumed = "the config specifies no size: assuming [2, 4, 64, 64] for sample"
    assert assumed in derive_inputs(without, "cpu", None).assumptions


def test_an_input_that_cannot_be_derived_is_one_line_with_its_name():
    class Unknown(diffusers.UNet2DModel):
        def forward(self, sample, timestep, camera): ...

    model = Unknown.from_config(dict(MODELS["ddpm-unet"]["settings"]))

    with pytest.raises(SourceError, match=r"^Unknown requires 'camera', which its config does not determine"):
        derive_inputs(model, "cpu", None)


def test_time_steps_are_an_input_that_the_program_reads(pipeline):
    program = fe.export(f"diffusers:{pipeline}/unet")

    (step,) = (node for node in program.graph.nodes if node.op == "placeholder" and node.name == "timestep")
    assert step.users
    assert step.meta["val"].shape == (2,)


def test_an_autoencoder_is_not_exported_as_both_halves_at_once(pipeline):
    with pytest.raises(SourceError, match=r"^AutoencoderKL needs two programs: .*encoder.*decoder"):
        fe.export(f"diffusers:{pipeline}/vae")
    with pytest.raises(SourceError, match=r"the vae is two programs, vae_encoder and vae_decoder"):
        fe.export(f"diffusers:{pipeline}", component="vae")


def test_a_decoder_has_its_own_weights_and_an_encoder_draws_nothing(pipeline):
    decoder = fe.export(f"diffusers:{pipeline}", component="vae_decoder")
    encoder = fe.export(f"diffusers:{pipeline}/vae/encoder")

    assert not [name for name in decoder.state_dict if name.startswith(("encoder", "quant_conv"))]
    assert not [name for name in encoder.state_dict if name.startswith(("decoder", "post_quant_conv"))]
    assert not [node for node in encoder.graph.nodes if "rand" in str(node.target)]
    assert [node.name for node in decoder.graph.nodes if node.name == "latents"]


def test_the_latents_of_a_decoder_are_those_of_its_encoder(pipeline):
    source = resolve(f"diffusers:{pipeline}/vae/decoder")

    inputs = source.example_inputs(source.factory(), "cpu", None)

    assert {name: value.shape for name, value in inputs.kwargs.items()} == {"latents": (2, 4, 8, 8)}


def test_a_text_encoder_returns_what_pipelines_read_of_it(pipeline):
    """SDXL and SD3 read the last hidden state but one."""
    source = component_source(resolve(f"diffusers:{pipeline}"), "text_encoder")
    module = source.factory()

    inputs = source.example_inputs(module, "cpu", None)

    assert source.kind == "transformers"
    assert len(module(**inputs.kwargs).hidden_states) == 3


def test_weights_that_stay_in_float32_do_so(tmp_path):
    """`from_pretrained(torch_dtype=bfloat16)` leaves them, so a checkpoint has them in float32."""
    spec = written(tmp_path, {"_class_name": MODELS["wan"]["class"], **MODELS["wan"]["settings"]})
    module_of("wan").to(torch.bfloat16).save_pretrained(tmp_path)
    real = diffusers.WanTransformer3DModel.from_pretrained(tmp_path, torch_dtype=torch.bfloat16)

    program = fe.export(spec, dtype="bfloat16")

    truth = {name: tensor.dtype for name, tensor in real.state_dict().items()}
    assert {name: tensor.dtype for name, tensor in program.state_dict.items()} == truth
    assert set(truth.values()) == {torch.float32, torch.bfloat16}


def test_a_setting_that_diffusers_ignores_is_named(tmp_path):
    spec = written(
        tmp_path, {"_class_name": "UNet2DModel", **MODELS["ddpm-unet"]["settings"], "new_attention": True}
    )

    (note,) = resolve(spec).assumptions

    assert note.endswith("ignores unknown settings: new_attention")


def test_a_quantized_config_is_not_taken_for_an_unquantized_one(tmp_path):
    quantized = {"quant_method": "bitsandbytes", "load_in_4bit": True}
    settings = {
        "_class_name": "UNet2DModel",
        **MODELS["ddpm-unet"]["settings"],
        "quantization_config": quantized,
    }

    report = fe.check(written(tmp_path, settings))

    assert [diagnostic.code for diagnostic in report.diagnostics] == ["FE105"]


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        ({"_class_name": "StableDiffusionPipeline"}, "StableDiffusionPipeline is a pipeline"),
        ({"_class_name": "UNet2DConditionModle"}, "no model class 'UNet2DConditionModle': did you mean"),
        ({"_class_name": "PNDMScheduler"}, "no model class 'PNDMScheduler'"),
        ({"model_type": "clip"}, "is not a config of a diffusers model: write hf:"),
        ({"in_channels": 3}, "it has no _class_name"),
    ],
)
def test_a_config_of_something_else_is_refused(tmp_path, settings, message):
    with pytest.raises(SourceError, match=message):
        resolve(written(tmp_path, settings))


@pytest.mark.parametrize(
    ("spec", "component", "message"),
    [
        ("diffusers:UNet2DConditionModle", None, "did you mean UNet2DConditionModel"),
        ("diffusers:no/such/config.json", None, "no such file or folder: no/such/config.json"),
        (
            "diffusers:UNet2DModel/decoder",
            None,
            "UNet2DModel is a single program and has no component 'decoder'",
        ),
        ("diffusers:AutoencoderKL", "unet", "has no component 'unet': it has encoder and decoder"),
        ("diffusers:UNet2DModel", "vision", "diffusers:UNet2DModel is a single program"),
        (
            "diffusers:{}",
            "transformer",
            "has no model 'transformer': it has text_encoder, text_encoder_2, unet",
        ),
        ("diffusers:{}/scheduler", None, "has no model 'scheduler'"),
    ],
)
def test_a_name_that_does_not_exist_is_one_line(pipeline, spec, component, message):
    with pytest.raises(SourceError, match=message):
        component_source(resolve(spec.format(pipeline)), component)


@pytest.mark.parametrize(
    ("spec", "message"),
    [
        (
            "MotionAdapter",
            "has no forward because it is a part of UNetMotionModel: check UNetMotionModel instead",
        ),
        ("ControlNetXSAdapter", "it is a part of UNetControlNetXSModel"),
        ("FluxMultiControlNetModel", "consists of other models and has no config"),
        ("QwenImageMultiControlNetModel", "consists of other models and has no config"),
        (
            "UniDiffuserTextDecoder",
            "has no default configuration because it requires prefix_length, prefix_inner_dim: pass the "
            "config of a published model: `diffusers:ORG/NAME`",
        ),
        (
            "AutoencoderKLHunyuanImage/encoder",
            "has no default configuration because it requires in_channels, ",
        ),
    ],
)
def test_a_class_that_cannot_be_checked_by_its_name_is_one_line(spec, message):
    with pytest.raises(SourceError, match=re.escape(message)):
        fe.check(f"diffusers:{spec}")


def test_a_class_without_a_default_configuration_is_checked_with_one(tmp_path):
    settings = {"_class_name": "UniDiffuserTextDecoder", "prefix_length": 3, "prefix_inner_dim": 8}

    assert resolve(written(tmp_path, settings)).kind == "diffusers"


def test_a_package_that_forward_needs_is_asked_for(monkeypatch):
    monkeypatch.setitem(sys.modules, "torchvision", None)

    report = fe.check("diffusers:CosmosTransformer3DModel")

    (diagnostic,) = report.diagnostics
    assert diagnostic.code == "FE102"
    assert "torchvision" in diagnostic.fix.message


def test_a_setting_without_which_nothing_is_resized_needs_no_package(tmp_path, monkeypatch):
    monkeypatch.setitem(sys.modules, "torchvision", None)
    settings = {"_class_name": "CosmosTransformer3DModel", "concat_padding_mask": False, "num_layers": 1}
    sizes = {"num_attention_heads": 2, "attention_head_dim": 16, "text_embed_dim": 12, "adaln_lora_dim": 8}

    assert fe.check(written(tmp_path, settings | sizes)).is_clean


def test_a_state_that_a_pipeline_keeps_is_not_derived():
    class WithCache(diffusers.UNet2DModel):
        def forward(self, sample, timestep, kv_cache): ...

    model = WithCache.from_config(dict(MODELS["ddpm-unet"]["settings"]))

    with pytest.raises(SourceError, match=r"requires 'kv_cache', state that a pipeline keeps between calls"):
        derive_inputs(model, "cpu", None)


@pytest.mark.filterwarnings("ignore:`torch.nn.utils.weight_norm`")
@pytest.mark.filterwarnings("ignore:The tensor attributes")  # `weight`, that weight_norm makes again
def test_a_buffer_that_is_a_view_stays_in_float32_too(tmp_path):
    """The filters of its activations are views; a trace refuses one of another dtype than its base."""
    settings = HALVES["AutoencoderKLMiniMaxH3Audio"]["settings"]
    spec = written(tmp_path, {"_class_name": "AutoencoderKLMiniMaxH3Audio", **settings})

    program = fe.export(f"{spec}/encoder", dtype="bfloat16")

    assert {tensor.dtype for tensor in program.state_dict.values()} == {torch.float32}


def test_a_pipeline_as_a_whole_is_refused_with_the_names_of_its_models(pipeline):
    names = "text_encoder | text_encoder_2 | unet | vae_encoder | vae_decoder"

    with pytest.raises(SourceError, match=re.escape(f"--component {names}")):
        fe.check(f"diffusers:{pipeline}")


def written(folder, settings):
    (folder / "config.json").write_text(json.dumps(settings))
    return f"diffusers:{folder}"


@pytest.fixture(scope="module")
def hub(pipeline, tmp_path_factory):
    """A hub with the configuration files of the pipeline, and with no weights."""
    files = {str(path.relative_to(pipeline)): path.read_bytes() for path in pipeline.rglob("*.json")}
    with local_hub(tmp_path_factory.mktemp("cache")) as served:
        served.add("org/pipeline", files=files)
        served.add("org/model", files={"config.json": files["unet/config.json"]})
        yield served


@pytest.mark.parametrize(
    ("spec", "component", "class_name"),
    [
        ("org/pipeline/unet", None, "UNet2DConditionModel"),
        ("org/pipeline@main", "vae_decoder", "AutoencoderKL"),
        ("org/pipeline/text_encoder@main", None, "CLIPTextModel"),
        ("org/model", None, "UNet2DConditionModel"),
    ],
)
def test_a_repository_of_the_hub_is_read_without_its_weights(hub, spec, component, class_name):
    source = component_source(resolve(f"diffusers:{spec}"), component)
    with torch.device("meta"):
        module = source.factory()

    assert type(module).__name__ == class_name
    assert f"is at commit {COMMIT} on the hub" in source.assumptions[0]


@pytest.mark.parametrize(
    ("spec", "message"),
    [
        ("org/missing/unet", "org/missing"),
        ("org/pipeline/transformer", "has no model 'transformer': it has text_encoder"),
    ],
)
def test_what_a_repository_lacks_is_one_line(hub, spec, message):
    with pytest.raises(SourceError, match=message):
        resolve(f"diffusers:{spec}")
