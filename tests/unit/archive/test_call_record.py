"""How a program is called to generate, in the manifest: as written, and nothing that contradicts itself."""

from __future__ import annotations

import dataclasses
import json
from typing import Any

import pytest

from fakexport.archive.manifest_json import decode_manifest, encode_manifest
from fakexport.files.documents import CallRecord, DocumentError, GenerationDefaults, StateTensor
from tests.unit.archive.described import manifest

DECODE = CallRecord(
    workload="decode",
    tokens="input_ids",
    logits="logits",
    prompt="input_ids",
    mask="attention_mask",
    positions="position_ids",
    state=(
        StateTensor("cache.keys", "cache_keys", "cache.keys"),
        StateTensor("cache.values", "cache_values", "cache.values"),
    ),
    capacity=64,
    defaults=GenerationDefaults(
        eos=(2, 3),
        pad=0,
        longest=128,
        suppressed=(7,),
        bad_words=((5, 6), (7, 8, 9)),
        repetition_penalty=1.25,
        no_repeat_ngram_size=3,
        least=4,
        least_new=2,
        is_drawn=True,
        temperature=0.5,
        top_k=40,
        top_p=0.75,
        not_applied=("num_beams",),
    ),
)


def changed(**values: Any) -> bytes:
    """The manifest with other values in the record; `...` removes one."""
    text = json.loads(encode_manifest(manifest(call=DECODE)))
    record = text["methods"]["model"]["call"] | values
    text["methods"]["model"]["call"] = {name: value for name, value in record.items() if value is not ...}
    return json.dumps(text).encode()


def test_it_comes_back_as_it_was() -> None:
    assert decode_manifest(encode_manifest(manifest(call=DECODE))).only.call == DECODE


def test_a_program_that_does_not_generate_has_none() -> None:
    assert b'"call"' not in encode_manifest(manifest())
    assert decode_manifest(encode_manifest(manifest())).only.call is None


@pytest.mark.parametrize(
    ("values", "message"),
    [
        ({"workload": "train"}, "is not a generation call"),
        ({"tokens": ...}, "tokens"),
        ({"more": 1}, "more"),
        ({"tokens": 3}, "tokens"),
        ({"capacity": -1}, "capacity"),
        (
            {"defaults": {**dataclasses.asdict(DECODE.defaults), "repetition_penalty": 0.0}},
            "repetition_penalty of the generation config is 0.0, but must be above 0",
        ),
        ({"defaults": {**dataclasses.asdict(DECODE.defaults), "least": -1}}, "least"),
        *(
            ({"defaults": {**dataclasses.asdict(DECODE.defaults), "bad_words": [[5, 6], word]}}, "bad_words")
            for word in ([], [7])
        ),
        (
            {"state": [{"name": "a", "input": "b", "output": "c"}] * 2},
            "the state of a decode call contain `a` twice",
        ),
        (
            {"state": [{"name": name, "input": "b", "output": name} for name in "ac"]},
            "the inputs of a decode call contain `b` twice",
        ),
        ({"state": [{"name": "a", "input": None, "output": "c"}]}, "`a` of a decode call must have an input"),
        ({"workload": "prefill"}, "`cache.keys` of a prefill call must not have an input"),
    ],
)
def test_a_record_that_cannot_be_is_refused(values: dict[str, Any], message: str) -> None:
    with pytest.raises(DocumentError, match=message):
        decode_manifest(changed(**values))
