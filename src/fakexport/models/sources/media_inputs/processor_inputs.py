"""Get example inputs from a published model's processor, which sets the sizes of images and audio."""

from __future__ import annotations

import json
import os
import re
import tempfile
import weakref
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import torch

from fakexport.files import read_file
from fakexport.files.processes import Limits, run_limited
from fakexport.models.hub import HubError, LocalFolder, Repository
from fakexport.models.sources.source_error import SourceError, first_line
from fakexport.models.sources.transformers.config_limits import MOST_SIZE, check_settings
from fakexport.models.sources.transformers.input_request import InputRequest, Underivable

try:
    import fcntl
except ImportError:  # Missing on Windows, where all targets are checked in one process.
    fcntl = None  # type: ignore[assignment]

_MODULE = "fakexport.models.sources.media_inputs.processor_process"
_SECONDS = 120
_WIDTH, _HEIGHT = 640, 480

# The files of a processor, and the files of its tokenizer.
_OWN = ("processor_config.json", "preprocessor_config.json", "video_preprocessor_config.json")
_SETTINGS = ("tokenizer_config.json", "special_tokens_map.json", "added_tokens.json")
_VOCABULARIES = (
    "tokenizer.json",
    "vocab.json",
    "merges.txt",
    "vocab.txt",
    "normalizer.json",
    "tokenizer.model",
    "sentencepiece.bpe.model",
    "spiece.model",
)
_MOST_SETTINGS = 16 << 20
_MOST_VOCABULARY = 100_000_000

# `_CLASS_KEY`: keys whose value is a class name, which must match `_CLASS`. `_LEFT_OUT`: keys that are
# removed because they name files, code or other models.
_CLASS_KEY = re.compile(r"\w*(processor|extractor)_type|\w+_class")
_CLASS = re.compile(
    r"[A-Z]\w*(Processor|ProcessorFast|ProcessorPil|Extractor|Tokenizer|TokenizerFast|Backend)"
)
_LEFT_OUT = re.compile(
    r"auto_map|audio_tokenizer|chat_template|name_or_path|\w+_(file|path|dir|folder)|repo_\w+"
)

# transformers writes 1e30 if a tokenizer has no limit.
_NO_LIMIT = "model_max_length"

_IMAGES = re.compile(r"\w*pixel_values(?!_videos)\w*|flattened_patches|image_patches")
_SOUNDS = re.compile(r"(input|audio|speech)_(features|values)")
_KINDS = (("image", _IMAGES), ("audio", _SOUNDS))
_ROLES = {"image": "vision", "audio": "audio"}


@dataclass(frozen=True)
class Processor:
    """The processor files of a repository or folder, for a model of the given type."""

    place: Repository | LocalFolder
    model_type: str
    # The processes for different targets share this file. They are forked from the process that read the
    # source.
    _answers: Any = field(
        default_factory=lambda: tempfile.TemporaryFile(buffering=0),  # noqa: SIM115
        compare=False,
        repr=False,
    )

    def __post_init__(self) -> None:
        weakref.finalize(self, self._answers.close)

    def files(self, *, is_text: bool) -> Mapping[str, Path]:
        """Return the paths of the files by name. The result is empty if the repository or folder has no
        processor.

        Args:
            is_text: Whether to include the files of the tokenizer, which can be large.
        Raises:
            Underivable: the files cannot be downloaded.
        """
        names = dict.fromkeys(_OWN, _MOST_SETTINGS)
        more = {**dict.fromkeys(_SETTINGS, _MOST_SETTINGS), **dict.fromkeys(_VOCABULARIES, _MOST_VOCABULARY)}
        try:
            own = self._found(names)
            return own | self._found(more) if own and is_text else own
        except HubError as error:
            raise Underivable(str(error)) from error

    def _found(self, names: Mapping[str, int]) -> dict[str, Path]:
        paths = {name: self.place.file(name, most_bytes=most) for name, most in names.items()}
        return {name: path for name, path in paths.items() if path is not None}

    def inputs(self, request: InputRequest) -> tuple[dict[str, Any], str] | None:
        """Run the processor on one image or audio clip per row. Return its results, and a note for the
        report.

        Results that are not inputs of the model's `forward` are dropped. Returns None if the model takes
        neither images nor audio, or if there is no processor.

        Raises:
            Underivable: the files exceed a limit or cannot be downloaded, or the processor raises an error.
        """
        kinds = [kind for kind, names in _KINDS if any(map(names.fullmatch, request.parameters))]
        if not kinds:
            return None
        asked = _asked(request, kinds)
        files = self.files(is_text=asked["words"] > 0)
        if not files:
            return None
        answer = self._answer(files, json.dumps(asked))
        if "error" in answer:
            raise Underivable(str(answer["error"]))
        taken = {n: v for n, v in answer["inputs"].items() if n in request.parameters and n != "labels"}
        if not any(names.fullmatch(name) for _, names in _KINDS for name in taken):
            raise Underivable(f"{answer['class']} only returns {', '.join(answer['inputs'])}")
        sizes = {"image": f"an image of {_WIDTH} x {_HEIGHT} pixels", "audio": "one second of sound"}
        content = " and ".join(sizes[kind] for kind in kinds)
        note = f"{answer['class']} of {self.place.name} created the inputs from {content} per row"
        return {name: _value(request, value) for name, value in taken.items()}, note

    def _answer(self, files: Mapping[str, Path], asked: str) -> Any:
        """Return the stored results for this request, or run the processor and store them.

        The process of another target may have stored them. If a process that holds the lock dies, the lock is
        released.
        """
        if fcntl is not None:
            fcntl.lockf(self._answers, fcntl.LOCK_EX)
        try:
            self._answers.seek(0)
            known = json.loads(self._answers.read() or "{}")
            if asked not in known:
                known[asked] = self._run(files, asked)
                self._answers.seek(0)
                self._answers.write(json.dumps(known).encode())
            return known[asked]
        finally:
            if fcntl is not None:
                fcntl.lockf(self._answers, fcntl.LOCK_UN)

    def _run(self, files: Mapping[str, Path], asked: str) -> Any:
        environment = {**os.environ, "HF_HUB_OFFLINE": "1", "TRANSFORMERS_OFFLINE": "1"}
        with tempfile.TemporaryDirectory(prefix="fakexport-") as folder, tempfile.TemporaryFile() as log:
            try:
                self._copy_to(Path(folder), files)
            except (OSError, ValueError) as error:
                return {"error": str(error) if isinstance(error, SourceError) else first_line(error)}
            answer, limits = Path(folder, "answer.json"), Limits(_SECONDS)
            arguments = [folder, asked, str(answer)]
            ended = run_limited(_MODULE, arguments, limits, stdout=log, stderr=log, environment=environment)
            if ended.limit is not None:
                return {"error": f"the processor did not end within {_SECONDS} seconds"}
            if ended.code:
                return {"error": f"the processor's process ended with exit code {ended.code}"}
            return json.loads(read_file(answer, most_bytes=_MOST_VOCABULARY))

    def _copy_to(self, folder: Path, files: Mapping[str, Path]) -> None:
        """Copy the files to a folder, without settings that name code, files or other models."""
        (folder / "config.json").write_text(json.dumps({"model_type": self.model_type}))
        for name, path in files.items():
            if name in _VOCABULARIES:
                (folder / name).write_bytes(read_file(path, most_bytes=_MOST_VOCABULARY))
                continue
            settings = json.loads(read_file(path, most_bytes=_MOST_SETTINGS))
            if not isinstance(settings, dict):
                raise SourceError(f"{path}: expected a JSON object")
            checked = _checked(settings, str(path))
            check_settings(checked, str(path))
            (folder / name).write_text(json.dumps(checked))


def _checked(settings: Any, place: str) -> Any:
    """Return settings without the keys that name code, files or other models."""
    if isinstance(settings, list):
        return [_checked(item, place) for item in settings]
    if not isinstance(settings, dict):
        return settings
    for key, value in settings.items():
        if _CLASS_KEY.fullmatch(key) and isinstance(value, str) and not _CLASS.fullmatch(value):
            raise SourceError(f"{place}: the value of `{key}` is not the name of a processor class")
    return {
        key: _checked(value, place)
        for key, value in settings.items()
        if not _LEFT_OUT.fullmatch(key)
        and not (key == _NO_LIMIT and isinstance(value, int) and value > MOST_SIZE)
    }


def _asked(request: InputRequest, kinds: Sequence[str]) -> dict[str, Any]:
    is_text = "input_ids" in request.parameters
    return {
        "batch": request.batch,
        "words": request.sequence if is_text else 0,
        "kinds": list(kinds),
        "size": [_WIDTH, _HEIGHT],
        "tokens": {kind: request.setting(f"{kind}_token_id", f"{kind}_token_index") for kind in kinds},
        "around": {kind: request.around_media(_ROLES[kind]) for kind in kinds},
    }


def _value(request: InputRequest, told: Any) -> Any:
    """Create an input from its JSON description. Floating point inputs have the dtype of the request."""
    if isinstance(told, list):
        return [_value(request, item) for item in told]
    if not isinstance(told, dict):
        return told
    shape, values = told["shape"], told.get("values")
    dtype = getattr(torch, told["dtype"])
    if dtype.is_floating_point or values is None:
        return request.floats(*shape)
    if isinstance(values, list):
        return torch.tensor(values, dtype=dtype, device=request.device).reshape(shape)
    return torch.full(shape, values, dtype=dtype, device=request.device)
