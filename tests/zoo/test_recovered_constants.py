"""The constants of fake-exported programs of real architectures are those of real exports, bit for bit."""

from collections.abc import Iterator

import pytest
import torch

from fakexport.models.sources import resolve
from tests.architectures import ARCHITECTURES, sampled
from tests.real_constants import compare_constants

pytest.importorskip("transformers")
pytestmark = [
    pytest.mark.zoo,
    # What torch thinks of how these models are written.
    pytest.mark.filterwarnings("ignore:The tensor attributes .* were assigned during export:UserWarning"),
    pytest.mark.filterwarnings("ignore:Using padding='same' with even kernel lengths:UserWarning"),
]

# Why there is no real export to compare with, and of which architectures.
WITHOUT_REFERENCE = {
    "what it computes depends on values": """
        dbrx encodec led lightglue longcat_flash longformer mimi mimi_encoder openai_privacy_filter ovis2
        pocket_tts_audio_tokenizer_encoder reformer slanet superglue udop vilt""",
    "inputs that it requires are not derived": """
        cosmos3_edge_vision fun_asr_nano_encoder glm5_next_vision hunyuan_vl_vision idefics kosmos-2 pi0
        siglip2""",
    "its inputs are derived in shapes that it does not take": "clvp colmodernvbert tvp",
    "it has no forward": "bark qwen2_5_omni",
    "it does not run with its default config in small": """
        colpali glmga pp_ocrv6_small_det qwen3_omni_moe_thinker sam3_tracker slanext step3p7""",
}
EXCLUDED = {name: reason for reason, names in WITHOUT_REFERENCE.items() for name in names.split()}

# Its audio tower is part of the trace since its inputs are derived, and it does not export with it.
NO_PROGRAM = frozenset(("qwen3_asr",))
# The grid that they read as numbers is fixed in the program; of a grid of tensors, stock torch makes none.
NO_REAL_PROGRAM = frozenset(
    (
        *("hunyuan_vl", "kimi_k25", "minicpm_ocr", "minicpmv4_6", "minicpmv4_7", "muse_glimmer"),
        *("qwen4_exp", "video_llama_3"),
    )
)

# Architecture -> in what its constants differ.
DIFFERENT = {
    "swinv2": "after `sign`, a fake tensor of shape [1, 1, 1, 2] has other strides in dimensions of size 1",
    "oneformer": "the weights of modules in a plain list are constants, and their values are not known",
}


@pytest.fixture(autouse=True)
def no_seed() -> Iterator[None]:
    """Nobody chose a seed, whichever test ran before."""
    with torch.random.fork_rng(devices=[]):
        torch.seed()
        yield


def test_every_exclusion_is_of_an_architecture():
    assert {*EXCLUDED, *DIFFERENT} <= {str(architecture) for architecture in ARCHITECTURES}


@pytest.mark.parametrize(
    "architecture",
    sampled(architecture for architecture in ARCHITECTURES if str(architecture) not in EXCLUDED),
)
def test_the_constants_are_those_of_a_real_export(architecture, tmp_path, request):
    if not architecture.is_available:
        pytest.skip(f"this transformers has no {architecture}")
    if str(architecture) in NO_PROGRAM | NO_REAL_PROGRAM:
        pytest.skip("it does not export")
    if str(architecture) in DIFFERENT:
        request.applymarker(pytest.mark.xfail(reason=DIFFERENT[str(architecture)]))

    comparison = compare_constants(resolve(architecture.source(tmp_path)))

    assert comparison.different == {}
    assert (comparison.only_real, comparison.only_fake, comparison.unbound) == ((), (), ())
