"""Run a processor of transformers on blank images and silent audio, in a separate process.

`python -m fakexport.models.sources.media_inputs.processor_process ALIVE FOLDER REQUEST ANSWER` writes the
results of the processor in FOLDER to the file ANSWER: `{"class": ..., "inputs": {name: value}}`, or
`{"error": ...}`. A tensor is written as a dict with its dtype, its shape and its values. If all values are
equal, only a single value is written. Values of floating point tensors are omitted, because they do not
influence a trace.
"""

from __future__ import annotations

import importlib
import json
import sys
import warnings
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from typing import Any

import numpy
import torch

from fakexport.files.processes import end_with_parent
from fakexport.models.sources.source_error import first_line, how_to_install

MOST_BYTES = 1 << 30
_WORD = "a"
_USUAL_RATE = 16_000


class UnavailableVideos(dict[str, Any]):
    """A stand-in for a video processor, used if torchvision is missing. Its settings are empty."""

    model_input_names: tuple[str, ...] = ()

    @classmethod
    def from_pretrained(cls, *args: Any, **kwargs: Any) -> UnavailableVideos:
        return cls()


def main(arguments: list[str]) -> None:
    end_with_parent(int(arguments[0]))
    folder, request, answer = arguments[1], json.loads(arguments[2]), Path(arguments[3])
    try:
        found = processed(folder, request)
    except Exception as error:  # Any error of a processor or of its files.
        how = how_to_install(error)
        found = {"error": first_line(error) + (f": {how}" if how else "")}
    answer.write_text(json.dumps(found))


def processed(folder: str, request: Mapping[str, Any]) -> dict[str, Any]:
    """Return the class of the processor, and the inputs that the processor returns for the request.

    Args:
        request: `batch`, the number of rows; `words`, the number of words in each row, or 0 for no text;
            `kinds`, the kinds of media in each row (`image`, `audio`); `around`, the ids of the start and end
            tokens of each kind; `tokens`, the ids of the placeholder tokens, if the config has them.
    """
    warnings.simplefilter("ignore")
    from transformers.utils import logging

    logging.set_verbosity_error()
    _without_torchvision()
    _limit_memory()
    processor = _loaded(folder, request)
    first: Exception | None = None
    for call in _calls(processor, request):
        try:
            found = dict(call())
        except Exception as error:  # Processors accept batches in different forms.
            first = first or error
        else:
            if found:
                inputs = {name: described(value) for name, value in found.items()}
                return {"class": type(processor).__name__, "inputs": inputs}
    raise first or ValueError(f"{type(processor).__name__} accepts none of these inputs: {request['kinds']}")


def _loaded(folder: str, request: Mapping[str, Any]) -> Any:
    """Load the processor; without text, only its part for images or audio, which needs no tokenizer."""
    from transformers import AutoFeatureExtractor, AutoImageProcessor, AutoProcessor

    parts = {"image": AutoImageProcessor, "audio": AutoFeatureExtractor}
    auto = AutoProcessor if request["words"] else parts[request["kinds"][0]]
    return auto.from_pretrained(folder, trust_remote_code=False, local_files_only=True, backend="pil")


def _limit_memory() -> None:
    """Limit the memory that this process can allocate in addition to the memory of the libraries."""
    status = Path("/proc/self/statm")
    if status.exists():
        import resource  # Not available on Windows.

        used = int(status.read_text().split()[0]) * resource.getpagesize()
        resource.setrlimit(resource.RLIMIT_AS, (used + MOST_BYTES,) * 2)


def _without_torchvision() -> None:
    """Make processors for images and videos work without torchvision, which is only needed for videos."""
    from transformers import processing_utils
    from transformers.utils import is_torchvision_available

    if is_torchvision_available():
        return
    stock = processing_utils.ProcessorMixin.check_argument_for_proper_class

    def check(self: Any, name: str, argument: Any) -> Any:
        return type(argument) if isinstance(argument, UnavailableVideos) else stock(self, name, argument)

    processing_utils.ProcessorMixin.check_argument_for_proper_class = check
    videos: Any = importlib.import_module("transformers.models.auto.video_processing_auto")
    videos.AutoVideoProcessor = UnavailableVideos


def _calls(processor: Any, request: Mapping[str, Any]) -> Iterator[Callable[[], Mapping[str, Any]]]:
    """Yield possible calls of the processor: with a list of images per row, and with one image per row."""
    batch, kinds = request["batch"], request["kinds"]
    given: dict[str, Any] = {"return_tensors": "pt"}
    if "audio" in kinds:
        rate = getattr(getattr(processor, "feature_extractor", processor), "sampling_rate", _USUAL_RATE)
        given |= {"audio": [numpy.zeros(rate, numpy.float32)] * batch, "sampling_rate": rate}
    if not request["words"]:
        content = given.pop("audio", [_image(request)] * batch)
        yield lambda: processor(content, **given)
        return
    given |= {"text": [_prompt(processor, request)] * batch, "padding": True}
    if "image" in kinds:
        yield lambda: processor(images=[[_image(request)]] * batch, **given)
        given["images"] = [_image(request)] * batch
    yield lambda: processor(**given)


def _image(request: Mapping[str, Any]) -> Any:
    from PIL import Image

    return Image.new("RGB", tuple(request["size"]), (128, 128, 128))


def _prompt(processor: Any, request: Mapping[str, Any]) -> str:
    """Return a text with a placeholder for each kind of media, followed by the words."""
    tokenizer = getattr(processor, "tokenizer", processor)
    placeholders = []
    for kind in request["kinds"]:
        name = f"{kind}_token"
        token = getattr(processor, name, None) or getattr(tokenizer, name, None)
        if token is None and (number := request["tokens"].get(kind)) is not None:
            token = tokenizer.convert_ids_to_tokens(number)
        if token is not None:
            before, after = (
                tokenizer.convert_ids_to_tokens(ids) for ids in request["around"].get(kind, ([], []))
            )
            placeholders.append("".join([*before, str(token), *after]))
    return "\n".join([*placeholders, " ".join([_WORD] * request["words"])])


def described(value: Any) -> Any:
    """Convert a value for JSON. A tensor becomes a dict. Numbers and lists are unchanged."""
    if isinstance(value, torch.Tensor):
        told: dict[str, Any] = {"dtype": str(value.dtype).removeprefix("torch."), "shape": list(value.shape)}
        if not value.is_floating_point() and value.numel():
            flat = value.flatten()
            is_constant = bool((flat == flat[0]).all())
            told["values"] = flat[0].item() if is_constant else flat.tolist()
        return told
    if isinstance(value, (list, tuple)):
        return [described(item) for item in value]
    if hasattr(value, "tolist"):
        return value.tolist()
    return value


if __name__ == "__main__":
    main(sys.argv[1:])
