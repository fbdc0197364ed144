"""Models that branch on data, exported with the answer that FE201 names, against eager mode."""

from __future__ import annotations

import re

import pytest
import torch

import fakexport as fe
from fakexport.sources import resolve
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
    with pytest.raises(RuntimeError, match=r"the program was exported for inputs with which `.*` is False"):
        program(**{**inputs, "input_ids": tokens, "attention_mask": padded})
