"""The libraries that models come from, one row each, and the path in a source. Imports nothing of fakexport,
so that every package may read it.
"""

import importlib
import re
import shlex
import sys
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path


@dataclass(frozen=True)
class Library:
    """A library whose models are named by a prefix: `timm:NAME`.

    Args:
        package: The name it is imported under, and the `kind` of its sources.
        prefix: The text before the colon of a source.
        forms: What users may write, for help texts and errors.
        distribution: The name that pip installs it by, where that is not the name it is imported under.
        needs_torchvision: Whether it brings torchvision, each version of which needs one version and build
            of torch: the command that installs it names the torch that stays.
        modules: What most of its models import.
    """

    package: str
    prefix: str
    forms: tuple[str, ...]
    distribution: str | None = None
    needs_torchvision: bool = False
    modules: tuple[str, ...] = ()


LIBRARIES = (
    Library(
        "transformers",
        "hf",
        ("hf:org/name[@REVISION][:CLASS]", "hf:path/to/config.json[:CLASS]", "hf:MODEL_TYPE[:CLASS]"),
        modules=("transformers.modeling_utils", "transformers.exporters.exporter_dynamo"),
    ),
    Library(
        "diffusers",
        "diffusers",
        ("diffusers:CLASS", "diffusers:path/to/config.json", "diffusers:FOLDER[/COMPONENT]"),
        modules=("diffusers.models.modeling_utils",),
    ),
    Library("timm", "timm", ("timm:NAME",), needs_torchvision=True, modules=("timm",)),
)
PACKAGES = tuple(library.package for library in LIBRARIES)
"""Names under which they are imported."""

FORMS = (
    "path/to/file.py:FACTORY",
    "package.module:FACTORY",
    *(form for library in LIBRARIES for form in library.forms),
)
"""The forms of a source."""

_PREFIXES = tuple(f"{library.prefix}:" for library in LIBRARIES)
_OF_PATHS = ("hf:", "diffusers:")


def library_of(source: str) -> Library | None:
    """Return the library that a source names by its prefix."""
    return next((known for known in LIBRARIES if source.startswith(f"{known.prefix}:")), None)


def import_library(source: str) -> None:
    """Import what most models of a source's library need, if that works: the model says what is wrong."""
    library = library_of(source)
    if library is not None:
        _import_modules(library)


def import_loaded_libraries() -> None:
    """Import the same of each library that is imported in part, as by `import transformers`."""
    for library in LIBRARIES:
        if library.package in sys.modules:
            _import_modules(library)


def _import_modules(library: Library) -> None:
    for name in library.modules:
        with suppress(Exception):
            importlib.import_module(name)


def named_path(source: str, folder: Path) -> tuple[str, str, str] | None:
    """Return the file or folder that a source names, with what is written before and after it.

    Args:
        source: One of `FORMS`.
        folder: What a path is relative to.
    Returns:
        The prefix, the path as written, and the rest; joined they are the source. None if it names no path
        that exists, such as a model of the hub.

    Example:
        >>> named_path("a.py:factory", Path("/nowhere"))
    """
    prefix = next((known for known in _PREFIXES if source.startswith(known)), "")
    if prefix and prefix not in _OF_PATHS:
        return None
    rest = source.removeprefix(prefix)
    ends = [len(rest), rest.rfind(":")]
    if prefix == "diffusers:":  # The component of a pipeline is not always a folder: `sdxl/vae/encoder`.
        ends += [at for at in range(len(rest) - 1, 0, -1) if rest[at] == "/"]
    for end in ends:
        if end > 0 and (folder / rest[:end]).exists():
            return prefix, rest[:end], rest[end:]
    return None


def packages_of(extra: str) -> str:
    """Return the packages of an extra of fakexport, as pip takes them in a shell.

    They are named and not the extra: where fakexport was installed from a clone, pip finds no fakexport.
    """
    mark = re.compile(rf"extra == ['\"]{re.escape(extra)}['\"]")
    from importlib.metadata import requires  # `--help` needs none of it.

    found = [text for text in requires("fakexport") or () if mark.search(text)]
    return shlex.join(text.partition(";")[0].strip() for text in found) or extra
