"""Architectures whose sizes several programs divide among them: every size gives what eager mode gives."""

from __future__ import annotations

import itertools
from pathlib import Path

import pytest
import torch

import fakexport as fe
from fakexport.checking import Wanted, report_on
from fakexport.exporting.capture import Request
from fakexport.models.sources import resolve
from tests.architectures import ARCHITECTURES
from tests.round_trip.reference import real_model, template_of
from tests.round_trip.sizes import as_shapes
from tests.round_trip.values import real_inputs
from tests.zoo.test_pipeline_stages import source_of

pytest.importorskip("transformers")
pytestmark = [pytest.mark.zoo, pytest.mark.filterwarnings("ignore")]

TEXT = (
    *(
        "albert",
        "bart",
        "bert",
        "bloom",
        "codegen",
        "cohere",
        "deepseek_v3",
        "distilbert",
        "electra",
        "falcon",
    ),
    *("gemma", "gemma2", "gpt2", "gpt_neox", "gptj", "granite", "llama", "mistral", "mixtral", "mpt", "olmo"),
    *("opt", "phi", "phi3", "qwen2", "qwen3", "qwen3_moe", "roberta", "stablelm", "starcoder2", "t5"),
)
IMAGES = ("vit", "resnet", "convnext")
MARKS = {"t5": (pytest.mark.slow, pytest.mark.chosen)}
BATCHES, LENGTHS = range(1, 5), range(1, 13)


def names_of(name: str) -> tuple[str, list[str]]:
    if name in IMAGES:
        return "pixel_values", ["pixel_values.0=1|2..4"]
    return "input_ids", ["input_ids.0=1|2..4", "input_ids.1=1..6|7..12"]


@pytest.mark.parametrize(
    "name", [pytest.param(each, marks=MARKS.get(each, pytest.mark.exhaustive)) for each in (*TEXT, *IMAGES)]
)
def test_every_size_gives_what_eager_mode_gives(name: str, tmp_path: Path) -> None:
    (architecture,) = (each for each in ARCHITECTURES if str(each) == name)
    source = source_of(architecture, tmp_path, depth=2)
    assert source is not None
    given, dynamic = names_of(name)
    request = Request(source=source, dtype="float32", dynamic_shapes=dynamic)
    report = report_on(request, wanted=Wanted(programs=True))
    assert report.is_clean, [found.message for found in report.diagnostics]
    programs = {f"range{i}": verdict.program for i, verdict in enumerate(report.verdicts)}
    module = real_model(resolve(source), "float32").eval()
    bound = fe.bind(fe.Bundle(programs), dict(module.state_dict()), check_finite=False)
    template = template_of(resolve(source), module, next(iter(bound.values())))
    example = as_shapes(template)
    old = example[given][:2]
    wanted = 0
    for batch, length in itertools.product(BATCHES, LENGTHS if given == "input_ids" else (old[1],)):
        new = {old[0]: batch, old[1]: length} if given == "input_ids" else {old[0]: batch}
        shapes = {
            key: tuple(new.get(size, size) if dim < 2 else size for dim, size in enumerate(shape))
            for key, shape in example.items()
        }
        inputs = real_inputs(template, shapes, getattr(module, "config", None), seed=1, is_padded=False)
        try:
            with torch.no_grad():
                eager = module(**inputs)
        except (RuntimeError, ValueError, IndexError):
            continue
        found = fe.run(bound, inputs)
        for key, value in found.items():
            if isinstance(eager.get(key), torch.Tensor):
                torch.testing.assert_close(value, eager[key], rtol=1e-4, atol=1e-5, equal_nan=True)
                wanted += 1
    assert wanted >= len(BATCHES)
