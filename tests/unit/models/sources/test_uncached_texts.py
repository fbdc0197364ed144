"""OmDet-Turbo encodes the texts that a program is given, whatever texts the model saw before."""

from __future__ import annotations

import json

import pytest
import torch

pytest.importorskip("transformers")

import fakexport as fe
from fakexport.models.sources import resolve
from tests.architectures import Architecture

OMDET = Architecture("omdet-turbo", "", is_common=False)
pytestmark = pytest.mark.skipif(not OMDET.is_available, reason="this transformers has no omdet-turbo")


@pytest.fixture
def made(tmp_path):
    path = tmp_path / "config.json"
    path.write_text(json.dumps({**OMDET.settings, "decoder_num_layers": 1}))
    source = resolve(f"hf:{path}")
    torch.manual_seed(0)
    model = source.factory().eval()
    with torch.no_grad():
        for parameter in model.parameters():
            parameter.copy_(0.2 * torch.randn_like(parameter))
    return source, model


@pytest.mark.slow
def test_a_program_takes_other_classes_tasks_masks_and_counts(made):
    source, model = made
    given = dict(source.example_inputs(model, "cpu", None).kwargs)
    program = fe.bind(fe.export(source), dict(model.state_dict())).module()

    given["pixel_values"] = torch.randn_like(given["pixel_values"])
    results = []
    for seed, counts, lengths in ((1, (2, 2), (16, 16)), (2, (1, 3), (16, 7)), (3, (3, 1), (5, 9))):
        torch.manual_seed(seed)
        other = {name: torch.randint(1, 90, given[name].shape) for name in given if name.endswith("_ids")}
        tasks = (torch.arange(16) < torch.tensor(lengths)[:, None]).long()
        known = {"classes_structure": torch.tensor(counts), "tasks_attention_mask": tasks}
        with torch.no_grad():
            expected = model(**{**given, **other, **known})
        found = program(**{**given, **other, **known})
        for name in ("decoder_class_logits", "decoder_coord_logits", "encoder_class_logits"):
            torch.testing.assert_close(found[name], expected[name], rtol=1e-4, atol=1e-4)
        results.append(found["encoder_class_logits"])
    assert not torch.equal(results[0], results[1])


def test_the_caches_of_the_model_stay_as_they_are(made):
    source, model = made
    given = dict(source.example_inputs(model, "cpu", None).kwargs)
    with torch.no_grad():
        model(**given)
    caches = model.language_cache_class, model.language_cache_prompt
    before = [dict(cache.cache) for cache in caches]

    with source.tracing(model, source.example_inputs(model, "cpu", None)), torch.no_grad():
        model(**given)

    assert (model.language_cache_class, model.language_cache_prompt) == caches
    assert [dict(cache.cache) for cache in caches] == before
