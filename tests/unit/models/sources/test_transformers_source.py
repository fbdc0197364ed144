"""`hf:` sources: which config, which class, which dtype, and what is wrong with a bad one."""

import importlib
import json
import re
import sys
from importlib.util import find_spec

import pytest
import torch

import fakexport as fe
from fakexport.models.sources import SourceError, resolve
from tests.architectures.architecture import Architecture
from tests.unit.models.sources.tiny_configs import TEXT, TINY


@pytest.fixture
def write(tmp_path):
    """Writes a config file and returns its spec."""

    def write_config(settings: object, name: str = "config.json") -> str:
        path = tmp_path / name
        path.write_text(settings if isinstance(settings, str) else json.dumps(settings))
        return f"hf:{path}"

    return write_config


def message_of(spec: str) -> str:
    with pytest.raises(SourceError) as caught:
        resolve(spec)
    message = str(caught.value)
    assert "\n" not in message
    return message


def build(spec: str, **options) -> torch.nn.Module:
    with torch.device("meta"):
        module: torch.nn.Module = resolve(spec, **options).factory()
    return module


@pytest.mark.parametrize(
    ("model_type", "class_name"),
    [
        ("llama", "LlamaForCausalLM"),
        ("mixtral", "MixtralForCausalLM"),
        ("bert", "BertForMaskedLM"),
        ("bart", "BartForConditionalGeneration"),
        ("t5", "T5ForConditionalGeneration"),
        ("blenderbot", "BlenderbotForConditionalGeneration"),
        ("whisper", "WhisperForConditionalGeneration"),
        ("wav2vec2", "Wav2Vec2ForCTC"),
        ("wav2vec2-conformer", "Wav2Vec2ConformerForSequenceClassification"),  # without a vocabulary
        ("vit", "ViTForImageClassification"),
        ("clip", "CLIPModel"),
        ("llama4", "Llama4ForConditionalGeneration"),
        ("detr", "DetrForObjectDetection"),
        ("clipseg_text_model", "CLIPSegTextModel"),
        ("musicgen", "MusicgenForConditionalGeneration"),
        ("shieldgemma2", "ShieldGemma2ForImageClassification"),
        ("internlm3", "LlamaForCausalLM"),
        # No auto class has these, and no file exports them.
        ("got_ocr2_vision", "GotOcr2VisionEncoder"),
        ("kosmos_2_vision_model", "Kosmos2VisionModel"),
    ],
)
def test_a_model_type_becomes_its_most_telling_class(model_type, class_name):
    source = resolve(f"hf:{model_type}")

    assert source.kind == "transformers"
    assert (source.assumptions[0], source.assumptions[-1]) == (
        f"hf:{model_type} is transformers' default configuration of that type, not a published model",
        f"hf:{model_type} does not specify a class: assuming {class_name}",
    )


def test_a_folder_that_is_called_like_a_model_type_is_not_passed_over_in_silence(tmp_path, monkeypatch):
    (tmp_path / "gpt2").mkdir()
    (tmp_path / "gpt2" / "config.json").write_text('{"model_type": "gpt2", "n_layer": 1}', encoding="utf-8")
    monkeypatch.chdir(tmp_path)

    assert resolve("hf:gpt2").assumptions[0] == (
        "hf:gpt2 is transformers' default configuration of that type, not a published model; "
        "to use the folder, write hf:./gpt2"
    )
    assert not any("folder" in sentence for sentence in resolve("hf:./gpt2").assumptions)


@pytest.mark.parametrize("name", ["AutoModelForSequenceClassification", "LlamaForSequenceClassification"])
def test_a_class_may_be_named(write, name):
    spec = write({"model_type": "llama", "architectures": ["LlamaForCausalLM"], **TEXT})

    source = resolve(f"{spec}:{name}")

    assert source.assumptions == ()
    assert type(build(f"{spec}:{name}")).__name__ == "LlamaForSequenceClassification"


def test_an_auto_class_gives_what_it_has_for_the_type_though_it_is_anothers():
    source = resolve("hf:internlm3:AutoModelForCausalLM")

    with torch.device("meta"):
        assert type(source.factory()).__name__ == "LlamaForCausalLM"


def test_the_class_comes_from_the_architectures(write):
    spec = write({"model_type": "bert", "architectures": ["BertForTokenClassification"], "hidden_size": 48})

    assert type(build(spec)).__name__ == "BertForTokenClassification"
    assert resolve(spec).assumptions == ()


def test_an_architecture_that_transformers_lacks_is_replaced_and_said_so(write):
    spec = write({"model_type": "llama", "architectures": ["MyOwnLlama"], **TEXT})

    source = resolve(spec)

    assert source.assumptions == ("transformers has no MyOwnLlama: assuming LlamaForCausalLM",)
    assert source.dtype is None


def test_the_architectures_alone_are_enough(write):
    spec = write({"architectures": ["LlamaForCausalLM"], **TEXT})

    assert type(build(spec)).__name__ == "LlamaForCausalLM"


def test_a_folder_with_a_config_is_a_source(write, tmp_path):
    write({"model_type": "llama", **TEXT})

    assert build(f"hf:{tmp_path}").config.hidden_size == TEXT["hidden_size"]


def test_a_text_class_of_a_multimodal_type_takes_the_text_part(write):
    spec = write({"model_type": "gemma3", "dtype": "bfloat16", "text_config": TEXT})

    module = build(f"{spec}:Gemma3ForCausalLM")

    assert module.config.model_type == "gemma3_text"
    assert module.config.hidden_size == TEXT["hidden_size"]
    assert resolve(f"{spec}:Gemma3ForCausalLM").dtype is torch.bfloat16


def test_modules_come_in_eval_mode_and_anew_each_time(write):
    source = resolve(write({"model_type": "llama", **TEXT}))

    first, second = source.factory(), source.factory()

    assert not first.training
    assert first is not second
    assert first.config is not second.config


@pytest.mark.parametrize("key", ["dtype", "torch_dtype"])
def test_the_dtype_of_the_file_is_the_sources_and_the_caller_decides(write, key):
    source = resolve(write({"model_type": "llama", key: "bfloat16", **TEXT}))

    module = source.factory()

    assert source.dtype is torch.bfloat16
    assert {parameter.dtype for parameter in module.parameters()} == {torch.float32}


@pytest.mark.parametrize("place", ["top", "text_config"])
def test_a_config_with_quantization_is_built_without_it_where_it_must_be_and_says_why(write, place):
    quantized = {"quantization_config": {"quant_method": "fp8"}}
    if place == "top":
        settings = {"model_type": "llama", "architectures": ["LlamaForCausalLM"], **TEXT, **quantized}
    else:
        settings = {"model_type": "gemma3", "text_config": {"model_type": "gemma3_text", **TEXT, **quantized}}

    source = resolve(write(settings))

    assert source.quantization is not None
    assert source.quantization.method == "fp8"
    module = source.factory()  # on a CPU, where transformers has no fp8 layers
    assert "requires a GPU" in source.quantization.left_out(module)
    config = module.config
    assert not hasattr(config, "quantization_config")
    assert not hasattr(config.get_text_config(), "quantization_config")


def test_code_that_a_config_names_is_not_loaded(write):
    auto_map = {"AutoModelForCausalLM": "modeling_evil.Evil", "AutoConfig": "configuration_evil.Evil"}

    module = build(write({"model_type": "llama", "auto_map": auto_map, **TEXT}))

    assert type(module).__module__.startswith("transformers.")


@pytest.mark.parametrize("model_type", ["llama", "bart", "vision-encoder-decoder", "llava"])
@pytest.mark.parametrize("use_cache", [False, True])
def test_a_cache_is_returned_only_if_asked_for(write, model_type, use_cache):
    spec = write({"model_type": model_type, **TINY[model_type][0]})
    source = resolve(spec, use_cache=use_cache)
    module = source.factory()

    with torch.no_grad():
        outputs = module(**source.example_inputs(module, "cpu", None).kwargs)

    assert (outputs.get("past_key_values") is not None) == use_cache


@pytest.mark.parametrize("use_cache", [False, True])
def test_a_model_exports_while_the_source_patches_it(write, use_cache):
    source = resolve(write({"model_type": "llama", **TEXT}), use_cache=use_cache)
    module = source.factory()
    inputs = source.example_inputs(module, "cpu", None)

    with source.tracing(module, inputs), torch.no_grad():
        program = torch.export.export(module, inputs.args, dict(inputs.kwargs))

    assert len(program.graph_signature.user_outputs) == (5 if use_cache else 1)


def test_patches_are_undone_after_an_exception(write):
    from transformers import modeling_utils

    def patchable():
        return modeling_utils.is_kernels_available, torch.nn.functional.scaled_dot_product_attention

    kernels, attention = patchable()
    source = resolve(write({"model_type": "llama", **TEXT}))
    module = source.factory()
    seen = []

    def fail_inside():
        with source.tracing(module, source.example_inputs(module, "cpu", None)):
            seen.extend(patchable())
            raise KeyError

    with pytest.raises(KeyError):
        fail_inside()

    assert seen[0] is not kernels
    assert seen[1] is attention
    assert patchable() == (kernels, attention)


@pytest.mark.slow
@pytest.mark.parametrize("model_type", ["vit", "gpt2"])
def test_the_patches_leave_the_program_as_it_is(write, model_type):
    source = resolve(write({"model_type": model_type, **TINY[model_type][0]}))
    module = source.factory()
    inputs = source.example_inputs(module, "cpu", None)

    def program():
        return torch.export.export(module, inputs.args, dict(inputs.kwargs))

    with source.tracing(module, inputs):
        patched = program()

    targets = [str(node.target) for node in patched.graph.nodes]
    assert targets == [str(node.target) for node in program().graph.nodes]


@pytest.mark.parametrize(
    ("spec", "start", "named"),
    [
        ("hf:lama", "hf:lama: transformers has no model type 'lama': did you mean ", "llama"),
        ("hf:mixtrall", "hf:mixtrall: transformers has no model type 'mixtrall'", "mixtral"),
        (
            "Qwen/Qwen2.5-7B",
            "'Qwen/Qwen2.5-7B' is not a source: write hf:Qwen/Qwen2.5-7B for the repository on the Hugging",
            "hub",
        ),
        ("models/llama.py", "'models/llama.py' is not a source: write path/to/file.py:FACTORY | ", "hf:"),
        ("nothing", "'nothing' is not a source: write path/to/file.py:FACTORY | ", "hf:"),
        ("a/b/c", "'a/b/c' is not a source: write path/to/file.py:FACTORY | ", "hf:"),
        (
            "hf:llama:AutoModelForCasualLM",
            "hf:llama: transformers has no class 'AutoModelForCasualLM': did you mean ",
            "AutoModelForCausalLM",
        ),
        (
            "hf:vit:AutoModelForCausalLM",
            "hf:vit: AutoModelForCausalLM does not accept the model type 'vit'; classes that do: ",
            "AutoModelForImageClassification",
        ),
        ("hf:llama:GPT2LMHeadModel", "hf:llama: GPT2LMHeadModel expects a GPT2Config", "not a LlamaConfig"),
        ("hf:llama:LlamaConfig", "hf:llama: transformers has no class 'LlamaConfig'", ""),
        ("hf:llama:pipeline", "hf:llama: transformers has no class 'pipeline'", ""),
    ],
)
def test_a_name_that_is_no_model_is_answered_with_what_is_meant(spec, start, named):
    message = message_of(spec)

    assert message.startswith(start)
    assert named in message


@pytest.mark.parametrize("folder", ["checkpoint", "./checkpoint", "checkpoint/"])
def test_a_folder_is_a_source_in_whichever_way_it_is_written(write, tmp_path, monkeypatch, folder):
    monkeypatch.chdir(tmp_path)
    (tmp_path / "checkpoint").mkdir()
    write({"model_type": "llama", **TEXT}, name="checkpoint/config.json")

    assert build(f"hf:{folder}:LlamaModel").config.hidden_size == TEXT["hidden_size"]
    assert resolve(f"hf:{folder}").assumptions == (
        f"hf:{folder} does not specify a class: assuming LlamaForCausalLM",
    )
    assert message_of(folder) == (
        f"{folder!r} is not a source: write hf:{folder} to use the config.json in this folder"
    )


@pytest.mark.parametrize("spec", ["models/llama.py", "nothing", "a/b/c"])
def test_what_is_no_hub_id_gets_the_forms(spec):
    assert message_of(spec).startswith(f"{spec!r} is not a source: write path/to/file.py:FACTORY | ")


def test_a_missing_config_is_named_with_the_nearest(write, tmp_path):
    write({}, name="llama-3.1-8b.json")

    message = message_of(f"hf:{tmp_path}/llama-3-8b.json")

    assert message == f"no such file: {tmp_path}/llama-3-8b.json: did you mean llama-3.1-8b.json?"


@pytest.mark.parametrize(
    ("content", "fault"),
    [
        ('{\n "model_type": "llama",\n "a": \n}', " is not JSON: Expecting value at line 4 column 1"),
        ("[1, 2]", "is not a model config: it contains a list, not an object"),
        ("{}", "is not a model config: it has neither model_type nor architectures"),
        (
            '{"architectures": ["NoSuchModel"]}',
            "has no model_type, and transformers has no class 'NoSuchModel'",
        ),
        ('{"architectures": "Llama"}', "has no model_type, and transformers has no class 'L'"),
        ('{"model_type": "lama"}', " has no model type 'lama': install a version that has it, or write a"),
        ('{"model_type": 3}', " has no model type '3'"),
        ("[" * 100_000, "cannot be read: RecursionError"),
    ],
)
def test_a_file_that_is_no_config_is_an_error(write, content, fault):
    assert fault in message_of(write(content))


def test_a_file_that_is_no_text_is_an_error(tmp_path):
    path = tmp_path / "config.json"
    path.write_bytes(b"\xff\xfe\x00")

    assert message_of(f"hf:{path}").startswith(f"{path} cannot be read: UnicodeDecodeError: ")


@pytest.mark.parametrize(
    "bad", [{"hidden_size": "large"}, {"num_attention_heads": 5}, {"torch_dtype": "float31"}], ids=str
)
def test_values_that_the_config_refuses_are_passed_on(write, bad):
    spec = write({"model_type": "llama", **TEXT, **bad})

    message = message_of(spec)

    assert message.startswith(f"{spec[3:]}: LlamaConfig rejects this config: ")
    assert str(next(iter(bad.values()))) in message


def test_transformers_missing_names_the_extra(monkeypatch):
    monkeypatch.setitem(sys.modules, "transformers", None)

    message = message_of("hf:llama")

    assert (
        message
        == "hf:llama requires transformers: pip install 'pillow>=11' 'safetensors>=0.8' 'transformers>=5.17'"
    )


def test_transformers_broken_says_why(monkeypatch):
    def fail(name):
        raise RuntimeError("tokenizers is too old")

    monkeypatch.setattr(importlib, "import_module", fail)

    assert message_of("hf:llama") == (
        "hf:llama: transformers cannot be imported: RuntimeError: tokenizers is too old"
    )


def test_a_default_config_that_transformers_cannot_build_is_told_as_such(write):
    (found,) = fe.check("hf:lfm2_moe").diagnostics
    own = fe.check(write({"model_type": "lfm2_moe"})).diagnostics[0]

    assert found.code == own.code == "FE102"
    assert found.notes[1] == (
        "transformers' own default config cannot build Lfm2MoeForCausalLM: "
        "the constructor raises the same error without fakexport"
    )
    assert "`hf:LiquidAI/LFM2-8B-A1B`, which transformers documents" in found.fix.message
    assert len(own.notes) == 1


@pytest.mark.slow
def test_an_error_of_eager_mode_with_a_default_config_is_repaired_by_a_published_one():
    (found,) = fe.check("hf:deepseek_v2").diagnostics

    assert found.code == "FE202"
    assert found.notes[0].startswith("eager mode raises the same error: TypeError: topk()")
    assert "config of a published model: `hf:deepseek-ai/DeepSeek-V2-Lite`, which" in found.fix.message


@pytest.mark.skipif(find_spec("torchaudio") is not None, reason="the package is installed")
def test_a_class_whose_package_is_missing_is_a_diagnostic():
    (found,) = fe.check("hf:higgs_audio_v2_tokenizer").diagnostics

    assert found.code == "FE102"
    assert "pip install" in found.fix.message
    assert " torchaudio" in found.fix.message


@pytest.mark.parametrize(
    ("model_type", "message"),
    [
        ("sam2_video", "it is a Sam2VideoInferenceSession, not a tensor: write a factory"),
        (
            "emu3_vqgan",
            "has no forward: write a factory that returns a module whose forward calls the method",
        ),
        ("nougat", "pass the config of a published model: `hf:facebook/nougat-base`"),
    ],
)
def test_a_model_that_cannot_be_checked_as_it_is_is_told_what_to_write(model_type, message):
    with pytest.raises(SourceError, match=re.escape(message)):
        fe.check(f"hf:{model_type}")


@pytest.mark.parametrize(("model_type", "dtype"), [("flint", torch.bfloat16), ("t5", torch.float16)])
def test_weights_that_stay_in_float32_do_so(tmp_path, model_type, dtype):
    """`from_pretrained(dtype=...)` leaves them, so the deployed model has them in float32."""
    source = Architecture(model_type, "", True).source(tmp_path).rstrip(":")
    module = resolve(source).factory()
    module.save_pretrained(tmp_path / "saved")
    real = type(module).from_pretrained(tmp_path / "saved", dtype=dtype)

    program = fe.export(source, dtype=str(dtype).removeprefix("torch."))

    truth = {name: tensor.dtype for name, tensor in real.state_dict().items()}
    assert {name: tensor.dtype for name, tensor in program.state_dict.items()} == truth
    assert set(truth.values()) == {torch.float32, dtype}
