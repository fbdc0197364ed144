"""Architectures in two and three pipeline stages: the result of the whole program, bit for bit."""

from __future__ import annotations

import itertools
import json
import re
from functools import partial
from pathlib import Path

import pytest
import torch

import fakexport as fe
from fakexport.deploy import LoadedProgram
from fakexport.exporting.stages import module_starts
from fakexport.models.sources import resolve
from tests.architectures import ARCHITECTURES, Architecture
from tests.architectures.deepened import deepened
from tests.round_trip.guarded_sizes import _shapes
from tests.round_trip.reference import real_model, template_of
from tests.round_trip.sizes import as_shapes
from tests.round_trip.values import real_inputs
from tests.stages import chained
from tests.zoo.test_recovered_constants import EXCLUDED

pytest.importorskip("transformers")
pytestmark = [pytest.mark.zoo, pytest.mark.filterwarnings("ignore")]

MARKS = dict.fromkeys(("gpt2", "llama", "t5", "mixtral"), pytest.mark.slow)
DEPTH = 3
SIZES = 5


def source_of(architecture: Architecture, folder: Path, depth: int = DEPTH) -> str | None:
    """The model with this many layers, or the small one where its config cannot be deepened."""
    path = folder / f"{architecture.model_type}.json"
    for settings in (deepened(architecture.settings, depth), dict(architecture.settings)):
        path.write_text(json.dumps(settings))
        source = f"hf:{path}:{architecture.auto_class}"
        try:
            real_model(resolve(source), "float32")
        except Exception:  # whatever a constructor raises for layers that do not fit each other
            continue
        return source
    return None


@pytest.mark.parametrize(
    "architecture",
    [
        pytest.param(each, id=str(each), marks=MARKS.get(str(each), pytest.mark.exhaustive))
        for each in ARCHITECTURES
        if str(each) not in EXCLUDED
    ],
)
def test_stages_give_what_the_program_gives(architecture, tmp_path):
    if not architecture.is_available:
        pytest.skip(f"this transformers has no {architecture}")
    source = source_of(architecture, tmp_path)
    if source is None:
        pytest.skip("it cannot be built")
    assert_stages_equal(source, lambda program: (fe.split(program, count) for count in (2, 3)))


UNEVEN = (
    *(
        "gpt2",
        "llama",
        "mistral",
        "mixtral",
        "qwen2",
        "qwen3",
        "gemma2",
        "phi3",
        "gpt_neox",
        "bloom",
        "falcon",
    ),
    *("opt", "olmo2", "granite", "bert", "roberta", "distilbert", "electra", "vit", "t5", "bart", "whisper"),
)


@pytest.mark.exhaustive
@pytest.mark.parametrize("name", UNEVEN)
def test_an_uneven_cut_of_the_users(name, tmp_path):
    """The first stage ends after the first of five blocks."""
    (architecture,) = (each for each in ARCHITECTURES if str(each) == name)
    source = source_of(architecture, tmp_path, depth=5)
    assert source is not None

    def split(program):
        second = next(path for path in module_starts(program) if re.fullmatch(r".*\.1", path))
        yield fe.split(program, at=[second])

    assert_stages_equal(source, split)


def assert_stages_equal(source, splits):
    """Compares the stages of each split with the whole program, at several sizes."""
    verdict = fe.check(source, dtype="float32", dynamic_shapes="auto").verdicts[0]
    if verdict.program is None:
        pytest.skip("it does not export")
    module = real_model(resolve(source), "float32").eval()
    state = dict(module.state_dict())
    bound = fe.bind(verdict.program, state, check_finite=False)
    template = template_of(resolve(source), module, bound)
    whole = LoadedProgram(bound)

    for split in splits(verdict.program):
        stages = fe.bind(split, state, check_finite=False)
        for shapes in [as_shapes(template), *itertools.islice(_shapes(bound), SIZES)]:
            inputs = real_inputs(template, shapes, getattr(module, "config", None), seed=1, is_padded=False)
            wanted, found = _called(whole, inputs), _called(partial(chained, stages), inputs)
            assert (wanted is None) == (found is None)
            for name, value in (wanted or {}).items():
                assert torch.equal(found[name].nan_to_num(), value.nan_to_num()), (list(split), shapes, name)


def _called(run, inputs):
    """What a call gives, or None if it refuses the sizes."""
    torch.manual_seed(0)
    try:
        return run({name: value.clone() for name, value in inputs.items()})
    except (fe.InputMismatchError, fe.DeployError):
        return None
