"""The error that this package raises, and suggestions for its messages."""

from __future__ import annotations

import difflib
import importlib
import importlib.metadata
import re
import shlex
import sys
from collections.abc import Iterable
from typing import Any

from fakexport.error import FakexportError
from fakexport.models import LIBRARIES, PACKAGES, packages_of

LONGEST_LIST = 8

# Import name of a package that models use -> the name to install, or None if both are the same.
_PACKAGES = {
    **dict.fromkeys(("accelerate", "bitsandbytes", "diffusers", "einops", "kernels", "numpy", "optimum")),
    **dict.fromkeys(("peft", "safetensors", "scipy", "sentencepiece", "tiktoken", "tokenizers")),
    **dict.fromkeys(("torchao", "torchaudio", "torchvision", "triton", "xformers")),
    **dict.fromkeys(PACKAGES),
    **dict.fromkeys(("flash_attn", "huggingface_hub", "mamba_ssm")),
    "cv2": "opencv-python-headless",
    "PIL": "pillow",
    "skimage": "scikit-image",
    "sklearn": "scikit-learn",
    "yaml": "pyyaml",
}
# Each version of these packages, or of their dependencies, requires one build of torch, so pip might replace
# the installed torch.
_OF_ONE_TORCH = frozenset(
    {"torchaudio", "xformers"} | {library.package for library in LIBRARIES if library.needs_torchvision}
)
# Message of transformers' `requires_backends` for a package that is not installed.
_ASKED_BY_TRANSFORMERS = re.compile(r"requires the (\w+) library but it was not found in your environment")
_DEFAULT_CONFIG = "own default config cannot build"
_BUILD = re.compile(r"cpu|xpu|cu[0-9]+|rocm[0-9.]+")


class SourceError(FakexportError, ValueError):
    """A model source or one of its inputs is invalid. The message is a single line that says what to change.

    Args:
        message: The message. Line breaks and repeated spaces are replaced by one space.
    """

    def __init__(self, message: str) -> None:
        super().__init__(" ".join(message.split()))


def did_you_mean(name: str, known: Iterable[str]) -> str:
    """Return the known names that resemble `name`, or all of a few, as the end of a sentence.

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
    """Return the exception's type and text in one line, for use in the message of a different exception."""
    text = " ".join(str(error).split())
    return f"{type(error).__name__}: {text}" if text else type(error).__name__


def import_library(package: str, spec: str) -> Any:
    """Import the library that a source needs, or raise a `SourceError`."""
    try:
        return importlib.import_module(package)
    except ModuleNotFoundError as error:
        if error.name == package:
            what = _requirement(package, packages_of(package))
            raise SourceError(f"{spec} requires {package}: pip install {what}") from error
        raise SourceError(f"{spec}: {package} cannot be imported because {error.name} is missing") from error
    except Exception as error:  # A library may check the versions of other packages.
        raise SourceError(f"{spec}: {package} cannot be imported: {first_line(error)}") from error


def note_default_config(error: Exception, library: str, class_name: str) -> None:
    """Add a note to a constructor's error: the library's default config causes it."""
    if not isinstance(error, ImportError):
        error.add_note(
            f"{library}' {_DEFAULT_CONFIG} {class_name}: the constructor raises the same error without "
            "fakexport"
        )


def is_of_default_config(error: BaseException) -> bool:
    """Return whether an error has a note that `note_default_config` added."""
    return any(_DEFAULT_CONFIG in note for note in getattr(error, "__notes__", ()))


def how_to_install(error: BaseException) -> str | None:
    """Return how to install the module that an import error reports as missing, or None for other errors.

    A pip command is returned only for known packages, because anyone can register a package with a module's
    name on a package index.
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
    if (command := pip_command(module)) is not None:
        return f"run `{command}`"
    if not isinstance(error, ModuleNotFoundError):
        return f"install {name} for {sys.executable}, as the error message of transformers explains"
    return (
        f"install the package with the module {module!r} for {sys.executable}, or, if it is your "
        "own file, put its folder on PYTHONPATH"
    )


def pip_command(module: str) -> str | None:
    """Return the command that installs a known package, or None for an unknown module."""
    if module not in _PACKAGES:
        return None
    package = _PACKAGES[module] or module.replace("_", "-")
    return f"{shlex.quote(sys.executable)} -m pip install {_requirement(module, package)}"


def _requirement(module: str, package: str) -> str:
    """Return the requirement for pip that installs a package without changing the installed torch."""
    if module not in _OF_ONE_TORCH:
        return package
    version = importlib.metadata.version("torch")
    build = version.partition("+")[2]
    index = f" --extra-index-url https://download.pytorch.org/whl/{build}" if _BUILD.fullmatch(build) else ""
    return f"torch=={version} {package}{index}"
