"""Models that branch on data, exported with the answer that FE201 names, against eager mode."""

from __future__ import annotations

import json
import re

import pytest
import torch

import fakexport as fe
from fakexport.models.sources import resolve
from tests.architectures import ARCHITECTURES

pytestmark = pytest.mark.slow

BY_NAME = {str(architecture): architecture for architecture in ARCHITECTURES}


@pytest.mark.parametrize("name", ["led", "longformer"])
def test_the_program_is_the_model_or_refuses(name, tmp_path):
    source = BY_NAME[name].source(tmp_path)
    (found,) = fe.check(source).diagnostics
    assume = re.findall(r"`--assume (\S+)`", found.fix.message)
    made = resolve(source)
    torch.manual_seed(0)
    module = made.factory().eval()
    inputs = made.example_inputs(module, "cpu", None).kwargs
    program = fe.bind(fe.export(source, assume=assume), module.state_dict()).module()
    vocabulary = module.get_input_embeddings().num_embeddings

    tokens = torch.randint(3, vocabulary, inputs["input_ids"].shape)
    padded = torch.ones_like(tokens)
    padded[0, -3:] = 0
    for mask in (torch.ones_like(tokens), padded):
        given = {**inputs, "input_ids": tokens, "attention_mask": mask}
        with torch.no_grad():
            expected, result = module(**given), program(**given)
        assert torch.equal(result["logits"], expected["logits"])
    # In both models, 2 stands for a token with global attention.
    padded[:, 0] = 2
    with pytest.raises(RuntimeError, match=r"exported under the assumption that `.*` is False"):
        program(**{**inputs, "input_ids": tokens, "attention_mask": padded})


SUPERGLUE = {
    "architectures": ["SuperGlueForKeypointMatching"],
    "model_type": "superglue",
    "hidden_size": 32,
    "keypoint_encoder_sizes": [8],
    "gnn_layers_types": ["self", "cross"],
    "sinkhorn_iterations": 2,
    "keypoint_detector_config": {
        "model_type": "superpoint",
        "encoder_hidden_sizes": [8, 8, 16, 16],
        "decoder_hidden_size": 32,
        "descriptor_decoder_dim": 32,
    },
}


def test_a_model_that_asks_for_a_size_takes_any_number_of_rows_but_none(tmp_path):
    (tmp_path / "config.json").write_text(json.dumps(SUPERGLUE))
    source = f"hf:{tmp_path / 'config.json'}"
    (found,) = fe.check(source).diagnostics
    assume = re.findall(r"`--assume (\S+)`", found.fix.message)
    made = resolve(source)
    torch.manual_seed(0)
    module = made.factory().eval()
    for parameter in module.keypoint_detector.parameters():
        parameter.data.normal_(std=0.5)  # Else every pixel has the same score, and is a keypoint.
    inputs = made.example_inputs(module, "cpu", None).kwargs

    program = fe.bind(fe.export(source, assume=assume), module.state_dict()).module()

    for _ in range(2):
        pixels = torch.randn(inputs["pixel_values"].shape)
        with torch.no_grad():
            expected, result = module(pixel_values=pixels), program(pixel_values=pixels)
        assert expected["matches"].shape[-1] > 1
        for name in ("matches", "matching_scores", "keypoints", "mask"):
            assert torch.equal(result[name], expected[name])
    with pytest.raises(
        RuntimeError,
        match=r"under the assumption that `keypoints.shape\[2\] == 0` is False, at modeling_superg",
    ):
        program(pixel_values=torch.full(inputs["pixel_values"].shape, torch.nan))
