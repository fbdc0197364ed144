"""List the supported model libraries, and find the library and the path that a source names.

This module imports nothing from fakexport, so every package can import it.
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
    """A library whose models are named with a prefix: `timm:NAME`.

    Args:
        package: The import name of the library, which is also the `kind` of its sources.
        prefix: The part of a source's text before the colon.
        forms: The forms that the text of a source can have, for help texts and errors.
        needs_torchvision: Whether the library is torchvision or depends on it. Each version of torchvision
            needs one version and build of torch, so the install command pins the installed torch.
        modules: Python modules that most of the library's models import.
    """

    package: str
    prefix: str
    forms: tuple[str, ...]
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
    Library(
        "torchvision", "torchvision", ("torchvision:NAME",), needs_torchvision=True, modules=("torchvision",)
    ),
)
PACKAGES = tuple(library.package for library in LIBRARIES)
"""Import names of the libraries."""

FORMS = (
    "path/to/file.py:FACTORY",
    "package.module:FACTORY",
    *(form for library in LIBRARIES for form in library.forms),
)
"""All ways to write a source, for messages."""

_PREFIXES = tuple(f"{library.prefix}:" for library in LIBRARIES)
_OF_PATHS = ("hf:", "diffusers:")


def library_of(source: str) -> Library | None:
    """Return the library to which the prefix of a source belongs, or None."""
    return next((known for known in LIBRARIES if source.startswith(f"{known.prefix}:")), None)


def import_library(source: str) -> None:
    """Import the modules that a source's library needs. Errors are left to building the model."""
    library = library_of(source)
    if library is not None:
        _import_modules(library)


def import_loaded_libraries() -> None:
    """For each library that is already imported, import the modules that most of its models need."""
    for library in LIBRARIES:
        if library.package in sys.modules:
            _import_modules(library)


def _import_modules(library: Library) -> None:
    for name in library.modules:
        with suppress(Exception):
            importlib.import_module(name)


def installed_version(package: str) -> str | None:
    """Return the version of an installed package, by import name, or None. The package is not imported."""
    from importlib.metadata import PackageNotFoundError, version  # Imported here: `--help` does not need it.

    with suppress(PackageNotFoundError):
        return version(package)
    return None


def named_path(source: str, folder: Path) -> tuple[str, str, str] | None:
    """Split the text of a source into the path of its file or folder and the texts before and after it.

    The path, which is relative to `folder`, must exist. Otherwise, for example for a model on the hub, the
    result is None.

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
    """Return the packages that one of fakexport's extras installs, quoted for a shell.

    The packages are listed instead of the extra, because pip may not find fakexport if it was installed from
    a clone. Without metadata that has the extra, the result is the extra of the clone that is imported.
    """
    mark = re.compile(rf"extra == ['\"]{re.escape(extra)}['\"]")
    from importlib.metadata import PackageNotFoundError, requires

    listed: list[str] = []
    with suppress(PackageNotFoundError):
        listed = requires("fakexport") or []
    found = [text.partition(";")[0].strip() for text in listed if mark.search(text)]
    clone = Path(__file__).parents[3]
    place = clone if (clone / "pyproject.toml").is_file() else "fakexport"
    return shlex.join(found or [f"{place}[{extra}]"])
