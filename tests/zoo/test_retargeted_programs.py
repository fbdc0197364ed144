"""Retargeted programs of real architectures are those of an export for the other device, node for node.

Both ways, from the CPU to an H100 and back, for every architecture that exports for both.
"""

import pytest

from tests.architectures import ARCHITECTURES, sampled
from tests.retargeting import ATTENTION, CASTS, EXPERTS, LITERALS, both_programs, differences
from tests.zoo.test_recovered_constants import EXCLUDED, NO_PROGRAM

pytest.importorskip("transformers")
pytestmark = [
    pytest.mark.zoo,
    # What torch thinks of how these models are written.
    pytest.mark.filterwarnings("ignore:The tensor attributes .* were assigned during export:UserWarning"),
    pytest.mark.filterwarnings("ignore:Using padding='same' with even kernel lengths:UserWarning"),
    # torch asks for cuDNN where an LSTM is made on a virtual GPU.
    pytest.mark.filterwarnings("ignore:PyTorch was compiled without cuDNN:UserWarning"),
]

# Reason -> architectures of which an export for the other device is another program. The tests look for the
# evidence of each reason (`tests/retargeting.py`), and for nothing besides; all others are equal.
DIFFERENT = {
    ATTENTION: """
        audio-spectrogram-transformer audioflamingo3 axk1 axk2 bamba beit blip-2 canary cohere_asr
        conditional_detr data2vec-audio deepseek_v2 deepseek_v3 deepseek_v32 deit depth_anything
        dinov2 dinov2_with_registers dinov3_vit doge fuyu glm glm4 glm46v glm4_moe glm4_moe_lite
        glm4v glm4v_moe glm_image glm_moe_dsa glm_ocr glmasr gpt_neox granite_speech
        granite_speech_plus grounding-dino hubert ijepa inkling_text kimi_k25 laguna lasr_ctc
        mask2former minicpm3 minimax_m2 minimax_m3_vl mistral4 mistral_large4 mlcd mlcd_vision_model
        mm-grounding-dino moonshine moonshine_streaming moss_transcribe_diarize mt5 musicflamingo
        musicgen musicgen_melody nemotron nemotron3_5_asr nemotron_asr_streaming oneformer
        parakeet_ctc parakeet_rnnt parakeet_tdt persimmon phi phi3 phi4_multimodal pix2struct pixio
        pop2piano prompt_depth_anything qwen2_audio sam3 sam3_lite_text sapiens2 seamless_m4t
        seamless_m4t_v2 sew speech-encoder-decoder stablelm swin t5 tipsv2 tipsv2_dpt umt5 unispeech
        unispeech-sat vision-encoder-decoder vision-text-dual-encoder vit vit_mae vit_msn vivit
        vjepa2 voxtral wav2vec2 wav2vec2-bert wav2vec2-conformer whisper xclip youtu zaya zoedepth""",
    EXPERTS: """
        afmoe aria axk1 axk2 cohere2_moe deepseek_v2 deepseek_v4 dots1 ernie4_5_moe exaone_moe
        flex_olmo glm4_moe glm4_moe_lite glm4v_moe gpt_oss granitemoe granitemoe_swa
        granitemoehybrid granitemoeshared hunyuan_v1_moe hy_v3 hy_v4 inkling2 inkling_text jamba
        kimi_linear kolibri1 laguna lfm2_moe mellum mimo_v2_flash minimax minimax_m2 minimax_m3_vl
        mistral4 mistral_large4 mixtral nemotron_h olmoe phimoe qwen2_moe qwen3_5_moe qwen3_moe
        qwen3_next qwen3_vl_moe qwen4_exp solar_open zaya""",
    CASTS: "lfm2_vl",
    LITERALS: """
        autoformer big_bird bigbird_pegasus chameleon cpmant d_fine deberta deberta-v2
        deepseek_vl_hybrid flava gemma3n_text got_ocr2 granite_speech granite_speech_plus informer
        kimi_k25 kosmos-2.5 lighton_ocr longt5 mistral3 mistral_large4 mllama muse_glimmer
        musicgen_melody oneformer phimoe pixtral pp_chart2table rt_detr rt_detr_v2 sam
        sam_hq seamless_m4t seggpt sew-d superpoint t5gemma timesfm videomae vit_mae vits wavlm zoedepth""",
}

CHECKED = [architecture for architecture in ARCHITECTURES if str(architecture) not in EXCLUDED]


def expected(name: str) -> set[str]:
    return {reason for reason, names in DIFFERENT.items() if name in names.split()}


def test_every_exception_is_an_architecture():
    names = {name for text in DIFFERENT.values() for name in text.split()}

    assert names <= {str(architecture) for architecture in CHECKED}


@pytest.mark.parametrize("architecture", sampled(CHECKED))
def test_it_is_the_program_of_an_export(architecture, tmp_path):
    if str(architecture) in NO_PROGRAM:
        pytest.skip("it does not export")
    programs = both_programs(architecture, tmp_path)

    assert differences(programs) == expected(str(architecture))
