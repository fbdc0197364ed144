"""Inputs of a folder with processor files are what transformers' own processor returns."""

from __future__ import annotations

import json
from collections.abc import Iterator
from contextlib import closing
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from typing import Any

import numpy
import pytest
import torch
import transformers

import fakexport as fe
from fakexport.emulation.fake import fake_mode
from fakexport.files.processes import WarmStart, run_limited
from fakexport.models.sources import SourceError, resolve
from fakexport.models.sources.media_inputs import processor_inputs
from fakexport.models.sources.media_inputs.processor_inputs import Processor
from tests.unit.models.sources.processor_folders import folder_of

Image = pytest.importorskip("PIL.Image")
pytestmark = pytest.mark.filterwarnings("ignore::FutureWarning")

ROWS = 2
PROMPT = "\n" + " ".join("a" * 16)
SIDE = 32
GRID = [[SIDE, 2 * SIDE], [2 * SIDE, SIDE], [2 * SIDE, 2 * SIDE]]


@pytest.fixture(scope="module")
def warm() -> Iterator[WarmStart]:
    imports = ("torch", "transformers.processing_utils", "transformers.models.auto.processing_auto")
    with pytest.MonkeyPatch.context() as patch:
        for library in ("HF_HUB", "TRANSFORMERS"):
            patch.setenv(f"{library}_OFFLINE", "1")
        with closing(WarmStart(imports, Path.cwd())) as found:
            yield found


@pytest.fixture(autouse=True)
def processors_start_warm(
    request: pytest.FixtureRequest, warm: WarmStart, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A processor's own process imports transformers first, which takes most of its time."""
    if request.node.function is not test_a_sound_is_that_of_the_feature_extractor:
        monkeypatch.setattr(processor_inputs, "run_limited", partial(run_limited, warm=warm))


@dataclass(frozen=True)
class Case:
    """A small model, the processor of its folder, and the processor's arguments for one row."""

    model_type: str
    processor: str
    part: Any
    tokens: tuple[str, ...] = ()
    settings: dict[str, Any] = field(default_factory=dict)
    config: dict[str, Any] = field(default_factory=dict)
    before: str = ""

    def __str__(self) -> str:
        return self.model_type

    def write(self, folder):
        return folder_of(
            folder,
            self.model_type,
            self.processor,
            self.part(),
            tokens=self.tokens,
            settings=self.settings,
            **self.config,
        )


def square(processor_class):
    side = {"height": SIDE, "width": SIDE}
    return lambda: getattr(transformers, processor_class)(size={"shortest_edge": SIDE}, crop_size=side)


LLAVA = {"patch_size": 14, "vision_feature_select_strategy": "default", "num_additional_image_tokens": 1}
LLAVA_NEXT = Case(
    "llava_next",
    "LlavaNextProcessor",
    lambda: transformers.LlavaNextImageProcessorPil(
        size={"shortest_edge": SIDE}, crop_size={"height": SIDE, "width": SIDE}, image_grid_pinpoints=GRID
    ),
    ("<image>",),
    LLAVA,
    {"image_token_index": 4, "image_token_id": 4, "image_grid_pinpoints": GRID},
    "<image>",
)
IDEFICS = Case(
    "idefics3",
    "Idefics3Processor",
    lambda: transformers.Idefics3ImageProcessorPil(
        size={"longest_edge": 2 * SIDE}, max_image_size={"longest_edge": SIDE}
    ),
    ("<image>", "<fake_token_around_image>", "<global-img>", "<end_of_utterance>"),
    {"image_seq_len": 4},
    {"image_token_id": 4},
    "<image>",
)
CLIP = Case("clip", "CLIPProcessor", square("CLIPImageProcessorPil"), ("<x>",))
WITH_IMAGES = [
    IDEFICS,
    pytest.param(CLIP, marks=pytest.mark.slow),
    pytest.param(LLAVA_NEXT, marks=pytest.mark.slow),
    pytest.param(
        Case(
            "llava",
            "LlavaProcessor",
            square("CLIPImageProcessorPil"),
            ("<image>",),
            LLAVA,
            {"image_token_index": 4, "image_token_id": 4},
            "<image>",
        ),
        marks=pytest.mark.slow,
    ),
    pytest.param(
        Case(
            "mllama",
            "MllamaProcessor",
            lambda: transformers.MllamaImageProcessorPil(
                size={"height": SIDE, "width": SIDE}, max_image_tiles=4
            ),
            ("<|image|>", "<|python_tag|>"),
            config={"image_token_index": 4},
            before="<|image|>",
        ),
        marks=pytest.mark.slow,
    ),
]


def of_processor(folder, case):
    processor = transformers.AutoProcessor.from_pretrained(folder, backend="pil", trust_remote_code=False)
    images = [[Image.new("RGB", (640, 480))]] * ROWS
    return processor(images=images, text=[case.before + PROMPT] * ROWS, padding=True, return_tensors="pt")


def compared(found, expected):
    """Compare shapes of floating point inputs, and values of the others."""
    for name, value in expected.items():
        if value.is_floating_point():
            assert found[name].shape == value.shape, name
        else:
            assert torch.as_tensor(found[name]).tolist() == value.tolist(), name


@pytest.mark.parametrize("case", WITH_IMAGES, ids=str)
def test_inputs_with_an_image_are_those_of_the_processor(case, tmp_path):
    folder = case.write(tmp_path)
    source = resolve(f"hf:{folder}")
    model = source.factory()

    inputs = source.example_inputs(model, "cpu", None)

    assert "640 x 480" in inputs.assumptions[0]
    assert case.processor in inputs.assumptions[0]
    expected = dict(of_processor(folder, case))
    compared(inputs.kwargs, expected)
    given = {**inputs.kwargs, **{n: v for n, v in expected.items() if v.is_floating_point()}}
    program = fe.bind(fe.export(source), model.state_dict()).module()
    with torch.no_grad():
        name, of_eager = next((n, v) for n, v in model(**expected).items() if torch.is_tensor(v))
        assert torch.allclose(program(**given)[name], of_eager, atol=1e-4)


@pytest.mark.slow
def test_tiles_are_not_known_without_processor_files(tmp_path):
    folder = IDEFICS.write(tmp_path)
    with_files = resolve(f"hf:{folder}")
    tiles = with_files.example_inputs(with_files.factory(), "cpu", None).kwargs["pixel_values"].shape[1]
    for name in ("preprocessor_config.json", "processor_config.json"):
        (folder / name).unlink()
    source = resolve(f"hf:{folder}")

    guessed = source.example_inputs(source.factory(), "cpu", None).kwargs["pixel_values"].shape[1]

    assert (tiles, guessed) == (5, 1)


@pytest.mark.slow
def test_a_grid_comes_from_the_processor_of_images_although_the_one_of_videos_is_missing(tmp_path):
    case = Case(
        "qwen2_vl",
        "Qwen2VLProcessor",
        lambda: transformers.Qwen2VLImageProcessorPil(
            size={"shortest_edge": 56 * 56, "longest_edge": 112 * 112}
        ),
        ("<|image_pad|>", "<|video_pad|>", "<|vision_start|>", "<|vision_end|>"),
        config={
            "image_token_id": 4,
            "video_token_id": 5,
            "vision_start_token_id": 6,
            "vision_end_token_id": 7,
        },
    )
    source = resolve(f"hf:{case.write(tmp_path)}")
    with fake_mode("cpu"):
        inputs = source.example_inputs(source.factory(), "cpu", None)
        ids, grid = (inputs.kwargs[name].tolist() for name in ("input_ids", "image_grid_thw"))

    expected = case.part()([Image.new("RGB", (640, 480))] * ROWS, return_tensors="pt")
    assert inputs.kwargs["pixel_values"].shape == expected["pixel_values"].shape
    assert grid == expected["image_grid_thw"].tolist()
    count = int(expected["image_grid_thw"][0].prod()) // 4
    assert ids[0][: count + 2] == [6, *[4] * count, 7]


def test_a_sound_is_that_of_the_feature_extractor(tmp_path):
    case = Case(
        "whisper",
        "WhisperProcessor",
        lambda: transformers.WhisperFeatureExtractor(feature_size=8, chunk_length=1),
        config={"max_source_positions": 50, "num_mel_bins": 8},
    )
    source = resolve(f"hf:{case.write(tmp_path)}")

    inputs = source.example_inputs(source.factory(), "cpu", None)

    expected = case.part()([numpy.zeros(16_000)] * ROWS, sampling_rate=16_000, return_tensors="pt")
    assert inputs.kwargs["input_features"].shape == expected["input_features"].shape == (ROWS, 8, 100)
    assert "one second of sound" in inputs.assumptions[0]


def test_a_model_that_rejects_what_its_processor_makes_names_the_inputs(tmp_path):
    folder = LLAVA_NEXT.write(tmp_path)
    path = folder / "processor_config.json"
    path.write_text(json.dumps({**json.loads(path.read_text()), "num_additional_image_tokens": 0}))
    source = resolve(f"hf:{folder}")

    with pytest.raises(SourceError) as caught:
        source.example_inputs(source.factory(), "cpu", None)

    text = str(caught.value)
    assert text.startswith("LlavaNextProcessor of ")
    assert "LlavaNextForConditionalGeneration does not accept them" in text
    assert text.endswith(
        "use --input NAME=DTYPE[DIMS] for input_ids, attention_mask, pixel_values, image_sizes"
    )


def changed(folder, file, **settings):
    path = folder / file
    path.write_text(json.dumps({**json.loads(path.read_text()), **settings}))


@pytest.mark.parametrize(
    ("file", "settings", "reason"),
    [
        ("preprocessor_config.json", {"image_processor_type": "pipeline"}, "is not the name of a processor"),
        pytest.param(
            "preprocessor_config.json",
            {"size": {"shortest_edge": 1 << 20}},
            "Error",
            marks=pytest.mark.slow,
        ),
        ("preprocessor_config.json", {"size": {"shortest_edge": 1 << 40}}, "is more than the limit"),
        ("tokenizer_config.json", {"tokenizer_class": "os.system"}, "is not the name of a processor"),
    ],
)
def test_processor_files_have_limits(file, settings, reason, tmp_path):
    folder = CLIP.write(tmp_path)
    changed(folder, file, **settings)
    source = resolve(f"hf:{folder}")

    inputs = source.example_inputs(source.factory(), "cpu", None)

    note = inputs.assumptions[0]
    assert note.startswith(f"the processor of {folder} was not used: ")
    assert reason in note
    assert inputs.kwargs["pixel_values"].shape == (ROWS, 3, SIDE, SIDE)


def test_code_and_files_that_processor_files_name_are_left_alone(tmp_path):
    folder, mark = CLIP.write(tmp_path), tmp_path / "ran"
    (folder / "own.py").write_text(f"open({str(mark)!r}, 'w')\nclass Own: pass")
    named = {"AutoProcessor": "own.Own", "AutoImageProcessor": "own.Own", "AutoTokenizer": ["own.Own", None]}
    missing = str(tmp_path / "missing")
    others = {
        "audio_tokenizer": {"audio_tokenizer_class": "DacModel", "audio_tokenizer_name_or_path": missing}
    }
    for file in ("preprocessor_config.json", "processor_config.json", "tokenizer_config.json"):
        changed(folder, file, auto_map=named, vocab_file=missing, **others)
    source = resolve(f"hf:{folder}")

    inputs = source.example_inputs(source.factory(), "cpu", None)

    assert inputs.assumptions[0].startswith("CLIPProcessor of ")
    assert not mark.exists()


@pytest.mark.slow
def test_the_processor_runs_once_for_several_targets(tmp_path, monkeypatch):
    monkeypatch.delenv("FAKEXPORT_IN_PROCESS")
    folder, runs = CLIP.write(tmp_path), tmp_path / "runs"
    run = Processor._run
    monkeypatch.setattr(Processor, "_run", lambda *given: (runs.open("a").write("run "), run(*given))[1])

    report = fe.check(f"hf:{folder}", target=["cpu", "H100", "A100"])

    assert all("CLIPProcessor" in str(verdict.target.assumptions) for verdict in report.verdicts)
    assert runs.read_text() == "run "
