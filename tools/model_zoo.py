"""Print a zoo file with the models of a library: `python tools/model_zoo.py transformers > zoo.yaml`.

- `transformers`: each key of `transformers.CONFIG_MAPPING`, built from its default config at full size,
  except those in `WITHOUT_DEFAULT`. Types that no auto class can build are included and count as not passed.
  Types that are a part of another type, such as `clip_text_model`, come last. Models that eager mode does not
  run in bfloat16 are checked in float32.
- `diffusers`: each model class in its default configuration; an autoencoder as encoder and as decoder.
- `timm`: the first architecture of each family. A family is a module of `timm.models`.

Models are sorted by a digest of their names, so that the beginning of a run is a random sample.
"""

from __future__ import annotations

import argparse
import hashlib
import importlib
import inspect
import sys
from collections.abc import Callable

_HEADER = """\
# {title}
# Written by tools/model_zoo.py.
timeout: 120
memory: 6 GiB
dtypes: bfloat16
models:
"""
# Model types that eager mode does not run in bfloat16: transformers keeps only some layers in float32, or an
# operator has no bfloat16 kernel (such as the FFT of FNet). Remove a type when eager mode runs it.
IN_FLOAT32 = frozenset(
    ["clvp", "clvp_encoder", "deberta", "fnet", "mra", "qwen2_5_omni_bigvgan", "reformer", "tipsv2", "xlnet"]
)
# Types of transformers 5.23 whose default config describes a model that does not run: a setting is missing or
# contradicts a different setting. Published configs of these types are complete.
_BROKEN = """
    autoformer chameleon colmodernvbert cosmos3_omni dbrx deepseek_ocr2_vision edgetam
    edgetam_vision_model emu3 esm exaone4_5 gemma3 glm46v glm4v glm4v_moe glm4v_moe_text glm4v_text
    glm5_next glm_image glm_image_text glm_ocr glmga granite_speech granite_speech_plus
    hunyuan_v1_dense hunyuan_v1_moe hunyuan_vl hunyuan_vl_text informer llama4 llama4_vision_model
    ministral modernvbert molmo2 moonshine_streaming nemotron ovis2 pix2struct_text_model
    qwen2_5_omni_thinker qwen2_5_vl qwen2_vl qwen3_5 qwen3_5_moe qwen3_asr qwen3_omni_moe_text
    qwen3_omni_moe_thinker qwen3_vl qwen3_vl_moe shieldgemma2 t5gemma2 t5gemma2_encoder
    t5gemma2_text time_series_transformer ultravbert uvdoc vitmatte
"""
# Types whose inputs only their parent model can create. Check the parent model with `--component`.
_PARTS_WITHOUT_INPUTS = """
    blip_2_qformer blip_text_model blt_local_decoder canary_decoder deepseek_ocr2_encoder
    dia_decoder dots3_note_audio_encoder edgetam_mask_decoder edgetam_prompt_encoder
    edgetam_video_mask_decoder edgetam_video_prompt_encoder idefics2_perceiver idefics_vision
    inkling2_vision inkling_audio instructblip_qformer instructblipvideo_qformer kosmos_2_text_model
    minicpmv4_6_vision mllama_vision_model molmo2_adapter pp_formulanet_text qwen2_5_omni_token2wav
    sam2_mask_decoder sam2_prompt_encoder sam2_video_mask_decoder sam2_video_prompt_encoder
    sam3_detr_decoder sam3_detr_encoder sam3_geometry_encoder sam3_lite_text_detr_decoder
    sam3_lite_text_detr_encoder sam3_lite_text_geometry_encoder sam3_lite_text_mask_decoder
    sam3_mask_decoder sam3_tracker_mask_decoder sam3_tracker_prompt_encoder
    sam3_tracker_video_mask_decoder sam3_tracker_video_prompt_encoder sam_hq_mask_decoder
    sam_hq_prompt_encoder sam_mask_decoder sam_prompt_encoder sapiens2_head siglip2_vision_model
    t5gemma2_decoder unlimited_ocr_vision_encoder
"""
WITHOUT_DEFAULT = frozenset((_BROKEN + _PARTS_WITHOUT_INPUTS).split())
_WAYS = ("H100/static", "cpu/static", "H100/auto", "cpu/auto")


def main() -> None:
    """Print the file: all models for the first target and kind of sizes, then all models for the next."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("library", choices=_MODELS)
    parser.add_argument("ways", nargs="*", default=_WAYS, metavar="TARGET/SIZES", help=", ".join(_WAYS))
    asked = parser.parse_args()
    kind, models = _MODELS[asked.library]()
    version = importlib.import_module(asked.library).__version__
    lines = [
        f"  - {{source: '{kind}:{name}', targets: {target}, dynamic: {sizes}{_dtype(kind, name)}}}\n"
        for target, sizes in (way.split("/") for way in asked.ways)
        for name in models
    ]
    header = _HEADER.format(title=f"Models of {asked.library} {version}: {len(models)}.")
    sys.stdout.write(header + "".join(lines))


def _dtype(kind: str, name: str) -> str:
    return ", dtypes: float32" if kind == "hf" and name in IN_FLOAT32 else ""


def _of_transformers() -> tuple[str, list[str]]:
    from transformers import CONFIG_MAPPING

    parts = part_types()
    names = set(CONFIG_MAPPING) - WITHOUT_DEFAULT
    return "hf", sorted(names, key=lambda name: (name in parts, _digest(name)))


def part_types() -> set[str]:
    """Return the model types whose config class a different config class lists as a sub-config."""
    from transformers import CONFIG_MAPPING, AutoConfig

    configs = dict(CONFIG_MAPPING.items())
    parts = {
        part.model_type
        for config in configs.values()
        for part in config.sub_configs.values()
        if part is not config and part is not AutoConfig
    }
    return parts & configs.keys()


def _of_diffusers() -> tuple[str, list[str]]:
    import diffusers

    base = diffusers.ModelMixin
    models = []
    for name in dir(diffusers):
        found = getattr(diffusers, name, None)
        if inspect.isclass(found) and issubclass(found, base) and found is not base:
            is_autoencoder = hasattr(found, "encode") and hasattr(found, "decode")
            models += [f"{name}/encoder", f"{name}/decoder"] if is_autoencoder else [name]
    return "diffusers", sorted(models, key=_digest)


def _of_timm() -> tuple[str, list[str]]:
    import timm

    return "timm", sorted((timm.list_models(module=family)[0] for family in timm.list_modules()), key=_digest)


def _digest(name: str) -> bytes:
    return hashlib.sha256(name.encode()).digest()


_MODELS: dict[str, Callable[[], tuple[str, list[str]]]] = {
    "transformers": _of_transformers,
    "diffusers": _of_diffusers,
    "timm": _of_timm,
}

if __name__ == "__main__":
    main()
