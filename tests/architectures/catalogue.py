"""Which architectures are tested: model types of transformers by the auto class that makes them."""

from __future__ import annotations

from collections.abc import Mapping

__all__ = ["COMMON", "RARE"]

# Those that people have, and every kind of constructor that we know of.
COMMON: Mapping[str, str] = {
    "AutoModelForCausalLM": """
        apertus arcee bamba bert-generation biogpt bitnet bloom codegen cohere cohere2 cpmant ctrl dbrx
        deepseek_v2 deepseek_v3 diffllama doge dots1 emu3 ernie4_5 ernie4_5_moe exaone4 falcon falcon_h1
        falcon_mamba gemma gemma2 gemma3_text gemma3n_text gemma4_text glm glm4 glm4_moe gpt2 gpt_bigcode
        gpt_neo gpt_neox gpt_oss gptj granite granitemoe granitemoehybrid granitemoeshared helium
        hunyuan_v1_dense jamba jetmoe kimi_linear lfm2 lfm2_moe llama llama4_text longcat_flash mamba
        mamba2 minimax ministral mistral mixtral modernbert-decoder moshi mpt nemotron nemotron_h olmo
        olmo2 olmo3 olmo_hybrid olmoe openai-gpt opt persimmon phi phi3 phimoe qwen2 qwen2_moe qwen3
        qwen3_moe qwen3_next recurrent_gemma rwkv seed_oss smollm3 stablelm starcoder2 trocr xglm xlnet
        xlstm zamba zamba2""",
    "AutoModelForMaskedLM": """
        albert bert big_bird camembert convbert data2vec-text deberta deberta-v2 distilbert electra ernie
        esm eurobert flaubert fnet funnel ibert layoutlm longformer luke megatron-bert mobilebert
        modernbert mpnet mra nomic_bert nystromformer perceiver reformer rembert roberta
        roberta-prelayernorm roc_bert roformer squeezebert tapas xlm xlm-roberta xlm-roberta-xl xmod yoso""",
    "AutoModelForTokenClassification": "bros canine layoutlmv3 lilt markuplm",
    "AutoModelForSeq2SeqLM": """
        bart bigbird_pegasus blenderbot blenderbot-small encoder-decoder fsmt led longt5 m2m_100 marian
        mbart mt5 mvp nllb-moe pegasus pegasus_x plbart prophetnet switch_transformers t5 t5gemma umt5""",
    "AutoModelForImageClassification": """
        beit bit convnext convnextv2 cvt data2vec-vision dinov2 dinov2_with_registers donut-swin
        efficientnet focalnet hgnet_v2 hiera ijepa imagegpt mobilenet_v1 mobilenet_v2 mobilevit
        mobilevitv2 poolformer pvt pvt_v2 regnet resnet segformer swiftformer swin swinv2 textnet vit
        vit_msn""",
    "AutoModel": """
        aimv2 autoformer bridgetower clap dac decision_transformer deit dinov3_convnext dinov3_vit dpr
        encodec groupvit informer levit mask2former maskformer mgp-str mimi patchtsmixer patchtst pixtral
        sam3 seggpt siglip_vision_model swin2sr time_series_transformer tvp vision-text-dual-encoder
        vitdet xclip""",
    "AutoModelForDepthEstimation": "depth_anything dpt glpn zoedepth",
    "AutoModelForObjectDetection": """
        conditional_detr d_fine dab-detr deformable_detr detr lw_detr rf_detr rt_detr rt_detr_v2
        table-transformer yolos""",
    "AutoModelForZeroShotObjectDetection": "grounding-dino owlv2 owlvit",
    "AutoModelForSemanticSegmentation": "upernet",
    "AutoModelForMaskGeneration": "sam sam2 sam_hq",
    "AutoModelForKeypointDetection": "superpoint",
    "AutoModelForKeypointMatching": "superglue",
    "AutoModelForImageMatting": "vitmatte",
    "AutoModelForPoseEstimation": "vitpose",
    "AutoModelForVideoClassification": "timesformer videomae vivit vjepa2",
    "AutoModelForAudioClassification": "audio-spectrogram-transformer",
    "AutoModelForCTC": """
        data2vec-audio hubert parakeet_ctc sew sew-d unispeech unispeech-sat wav2vec2 wav2vec2-bert
        wav2vec2-conformer wavlm""",
    "AutoModelForSpeechSeq2Seq": """
        granite_speech moonshine moonshine_streaming pop2piano seamless_m4t seamless_m4t_v2
        speech-encoder-decoder speech_to_text speecht5 voxtral whisper""",
    "AutoModelForTextToWaveform": "bark csm musicgen musicgen_melody vits",
    "AutoModelForZeroShotImageClassification": """
        align altclip chinese_clip clip clipseg metaclip_2 siglip siglip2""",
    "AutoModelForImageTextToText": """
        aria aya_vision blip blip-2 chameleon florence2 fuyu gemma3 git got_ocr2 idefics idefics2 idefics3
        instructblip internvl janus kosmos-2 llama4 llava llava_next llava_onevision mistral3 mllama
        paligemma pix2struct qwen2_5_vl qwen2_vl qwen3_vl smolvlm udop vipllava vision-encoder-decoder""",
    "AutoModelForVisualQuestionAnswering": "vilt",
    "AutoModelForPreTraining": "flava lxmert splinter visual_bert vit_mae",
    "AutoModelForTimeSeriesPrediction": "timesfm",
}

# The long tail. A type that is but a part of another one here is left out.
RARE: Mapping[str, str] = {
    "AutoModelForCausalLM": """
        afmoe axk1 axk2 bailing_hybrid beam cohere2_moe cwm deepseek_v32 deepseek_v4 exaone_moe flex_olmo
        flint glm4_moe_lite glm_moe_dsa gpt-sw3 gpt_neox_japanese granite_swa granitemoe_swa hrm_text
        hunyuan_v1_moe hy_v3 hy_v4 inkling_text internlm3 iquestcoder jais2 kolibri1 laguna mellum
        mimo_v2_flash minicpm3 minimax_m2 ministral3 nanochat solar_open vaultgemma youtu zaya""",
    "AutoModelForSeq2SeqLM": "audioflamingo3 glmasr moss_transcribe_diarize musicflamingo qwen2_audio",
    "AutoModelForSpeechSeq2Seq": "canary cohere_asr granite_speech_plus qwen3_asr voxtral_realtime",
    "AutoModel": """
        clvp cohere_compass_vision cosmos3_edge_vision embedding_gemma2 fun_asr_nano_encoder gemma3n_audio
        gemma4_audio gemma4_vision glm5_next_vision glm_image hunyuan_vl_vision kyutai_speech_to_text
        lightglue maskformer-swin mimi_encoder mlcd mlcd_vision_model molmo2_text muse_glimmer_assistant
        muse_spark_vision nemotron3_5_transcribe_asr_audio nemotron3_5_transcribe_word_timestamp
        nemotron3_diarization_audio oneformer pixio pocket_tts_audio_tokenizer_encoder pp_ocrv6_small_rec
        pp_ocrv6_tiny_rec radio sam3_lite_text sapiens2""",
    "AutoModelForPreTraining": "colmodernvbert colpali colqwen2",
    "AutoModelForImageTextToText": """
        cosmos3_omni deepseek_vl deepseek_vl_hybrid exaone4_5 gemma4 gemma4_unified glm46v glm4v glm4v_moe
        glm_ocr glmga granite_docling hunyuan_vl hyperclovax_vision_v2 inkling2 instructblipvideo
        kimi_k25 kosmos-2.5
        lfm2_vl lfm3_vl lighton_ocr llava_next_video minicpm_ocr minicpmv4_6 minicpmv4_7 minimax_m3_vl
        mistral4 mistral_large4 muse_glimmer ovis2 paddleocr_vl pi0 pp_chart2table qianfan_ocr qwen3_5
        qwen3_5_moe qwen3_omni_moe_thinker qwen3_vl_moe qwen4_exp shieldgemma2 step3p7 t5gemma2
        video_llama_3 video_llava""",
    "AutoModelForMaskedLM": "gte jina_embeddings_v3 ultravbert",
    "AutoModelForTextToWaveform": "higgs_audio_v2",
    "AutoModelForDecision": "jev",
    "AutoModelForCTC": "lasr_ctc",
    "AutoModelForZeroShotObjectDetection": "mm-grounding-dino",
    "AutoModelForRNNT": "nemotron3_5_asr nemotron_asr_streaming parakeet_rnnt",
    "AutoModelForTokenClassification": "openai_privacy_filter",
    "AutoModelForMultimodalLM": "phi4_multimodal qwen2_5_omni",
    "AutoModelForObjectDetection": "pp_ocrv6_small_det",
    "AutoModelForDepthEstimation": "prompt_depth_anything tipsv2_dpt",
    "AutoModelForMaskGeneration": "sam3_tracker sam3_video",
    "AutoModelForTableRecognition": "slanet slanext",
    "AutoModelForTimeSeriesPrediction": "timesfm2_5",
    "AutoModelForZeroShotImageClassification": "tipsv2 videoprism",
    "AutoModelForTDT": "parakeet_tdt",
}
