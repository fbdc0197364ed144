"""Experts of transformers that have no other implementation, and could have: what FE301 says of them."""

from __future__ import annotations

import re

import pytest
import torch

import fakexport as fe

moe = pytest.importorskip("transformers.integrations.moe")
pytest.importorskip("transformers")
pytestmark = [pytest.mark.zoo, pytest.mark.slow]


def experts_of_step():
    from transformers.models.step3p7 import configuration_step3p7, modeling_step3p7

    config = configuration_step3p7.Step3p7TextConfig(
        hidden_size=8, moe_intermediate_size=6, num_local_experts=5, num_experts_per_tok=2
    )
    config._experts_implementation = "eager"
    torch.manual_seed(0)
    experts = modeling_step3p7.Step3p7Experts(config, swiglu_limit=0.1)
    for parameter in experts.parameters():
        parameter.data.normal_()
    return config, experts


def inputs():
    weights, index = torch.rand(7, 5).topk(2)
    return torch.randn(7, 8), index, weights


def test_the_class_that_a_fix_says_to_decorate_computes_the_same_when_it_is():
    config, experts = experts_of_step()
    states, index, weights = inputs()
    (loop, *_) = fe.check(experts, (states, index, weights)).diagnostics
    said = re.match(r"decorate `(\w+)` with `@(\w+)` of `transformers.integrations`", loop.fix.message)

    decorated = type("Decorated", (type(experts),), {"_apply_gate": type(experts)._apply_gate})
    made = getattr(moe, said[2])(decorated)(config, swiglu_limit=0.1)
    made.load_state_dict(experts.state_dict())
    config._experts_implementation = "batched_mm"
    program = fe.bind(fe.export(made, (states, index, weights)), made.state_dict()).module()

    assert said[1] == "Step3p7Experts"
    with torch.no_grad():
        torch.testing.assert_close(program(states, index, weights), experts(states, index, weights))


def test_experts_of_which_some_pass_on_what_they_get_are_not_decorated():
    from transformers.models.longcat_flash import configuration_longcat_flash, modeling_longcat_flash

    config = configuration_longcat_flash.LongcatFlashConfig(
        hidden_size=8, expert_ffn_hidden_size=6, n_routed_experts=63, zero_expert_num=2
    )
    experts = modeling_longcat_flash.LongcatFlashExperts(config)

    (loop, *_) = fe.check(experts, inputs()).diagnostics

    assert loop.code == "FE301"
    assert "decorate" not in loop.fix.message
    assert "loop over all possible indices" in loop.fix.message
