"""The one error of this room, and the names that its messages offer."""

from __future__ import annotations

import difflib
import importlib
import importlib.metadata
import re
import shlex
import sys
from collections.abc import Iterable
from typing import Any

from fakexport._libraries import LIBRARIES, packages_of
from fakexport.error import FakexportError

LONGEST_LIST = 8

# Packages of models whose name is that of their module, and those where it is not.
_PACKAGES = {
    **dict.fromkeys(("accelerate", "bitsandbytes", "diffusers", "einops", "kernels", "numpy", "optimum")),
    **dict.fromkeys(("peft", "safetensors", "scipy", "sentencepiece", "tiktoken", "tokenizers")),
    **dict.fromkeys(("torchao", "torchaudio", "torchvision", "triton", "xformers")),
    **{library.package: library.distribution for library in LIBRARIES},
    **dict.fromkeys(("flash_attn", "huggingface_hub", "mamba_ssm")),
    "cv2": "opencv-python-headless",
    "PIL": "pillow",
    "skimage": "scikit-image",
    "sklearn": "scikit-learn",
    "yaml": "pyyaml",
}
# Each version of these, or of what they need, goes with one build of torch: pip would exchange the torch.
_OF_ONE_TORCH = frozenset(
    {"torchaudio", "torchvision", "xformers"}
    | {library.package for library in LIBRARIES if library.needs_torchvision}
)
# transformers' `requires_backends` for a package that is not installed.
_ASKED_BY_TRANSFORMERS = re.compile(r"requires the (\w+) library but it was not found in your environment")
_DEFAULT_CONFIG = "own default config cannot build"
_BUILD = re.compile(r"cpu|xpu|cu[0-9]+|rocm[0-9.]+")


class SourceError(FakexportError, ValueError):
    """A model source, or an input of one, cannot be used. The message is one line that says what to change.

    Args:
        message: Line breaks and runs of spaces become one space.
    """

    def __init__(self, message: str) -> None:
        super().__init__(" ".join(message.split()))


def did_you_mean(name: str, known: Iterable[str]) -> str:
    """Return the known names that resemble `name`, else all of them if they are few, else nothing.

    Returns:
        A text to append to a sentence: `: did you mean gpt2, gptj?`, `: it has cpu, gpu`, or `` (nothing).

    Example:
        >>> did_you_mean("lama", ["llama", "bert"])
        ': did you mean llama?'
    """
    names = sorted(set(known))
    near = difflib.get_close_matches(name, names, n=3, cutoff=0.6)
    if near:
        return f": did you mean {', '.join(near)}?"
    return f": it has {', '.join(names)}" if 0 < len(names) <= LONGEST_LIST else ""


def first_line(error: BaseException) -> str:
    """Return the exception's type and its text in one line, for a message of our own."""
    text = " ".join(str(error).split())
    return f"{type(error).__name__}: {text}" if text else type(error).__name__


def import_library(package: str, spec: str) -> Any:
    """Return the library that a source needs, imported.

    Raises:
        SourceError: it is not installed, or raises when it is imported.
    """
    try:
        return importlib.import_module(package)
    except ModuleNotFoundError as error:
        if error.name == package:
            what = _requirement(package, packages_of(package))
            raise SourceError(f"{spec} needs {package}: pip install {what}") from error
        raise SourceError(f"{spec}: {package} cannot be imported, {error.name} is missing") from error
    except Exception as error:  # a library may check the versions of others
        raise SourceError(f"{spec}: {package} cannot be imported: {first_line(error)}") from error


def note_default_config(error: Exception, library: str, class_name: str) -> None:
    """Add to an error of a constructor that the default config of a library is its cause."""
    if not isinstance(error, ImportError):
        error.add_note(f"{library}' {_DEFAULT_CONFIG} {class_name}: it raises the same without fakexport")


def is_of_default_config(error: BaseException) -> bool:
    """Return whether the default config of a library is known as the cause of an error."""
    return any(_DEFAULT_CONFIG in note for note in getattr(error, "__notes__", ()))


def how_to_install(error: BaseException) -> str | None:
    """Return what makes a missing module importable, or None for another error.

    A command is given for packages that are known: the name of a module may be anyone's on an index.
    """
    if isinstance(error, ModuleNotFoundError) and error.name:
        name = error.name
    elif isinstance(error, ImportError) and (asked := _ASKED_BY_TRANSFORMERS.search(str(error))):
        name = asked[1]
    else:
        return None
    module = name.partition(".")[0]
    if module in sys.modules:
        return f"install a version of {module} that has {name}"
    if module in _PACKAGES:
        package = _PACKAGES[module] or module.replace("_", "-")
        return f"run `{shlex.quote(sys.executable)} -m pip install {_requirement(module, package)}`"
    if not isinstance(error, ModuleNotFoundError):
        return f"install {name} for {sys.executable}, as transformers says in the note"
    return (
        f"install the package that has the module {module!r} for {sys.executable}, or, if it is a file of "
        "your own, put its folder on PYTHONPATH"
    )


def _requirement(module: str, package: str) -> str:
    """What pip has to be asked for so that the torch that is here stays."""
    if module not in _OF_ONE_TORCH:
        return package
    version = importlib.metadata.version("torch")
    build = version.partition("+")[2]
    index = f" --extra-index-url https://download.pytorch.org/whl/{build}" if _BUILD.fullmatch(build) else ""
    return f"torch=={version} {package}{index}"
