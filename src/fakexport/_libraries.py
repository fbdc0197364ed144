"""The libraries that models come from, one row each. Imports nothing, so that every package may read it."""

from dataclasses import dataclass


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
    """

    package: str
    prefix: str
    forms: tuple[str, ...]
    distribution: str | None = None
    needs_torchvision: bool = False


LIBRARIES = (
    Library(
        "transformers",
        "hf",
        ("hf:org/name[@REVISION][:CLASS]", "hf:path/to/config.json[:CLASS]", "hf:MODEL_TYPE[:CLASS]"),
    ),
    Library(
        "diffusers",
        "diffusers",
        ("diffusers:CLASS", "diffusers:path/to/config.json", "diffusers:FOLDER[/COMPONENT]"),
    ),
    Library("timm", "timm", ("timm:NAME",), needs_torchvision=True),
)
PACKAGES = tuple(library.package for library in LIBRARIES)
"""Names under which they are imported."""

FORMS = (
    "path/to/file.py:FACTORY",
    "package.module:FACTORY",
    *(form for library in LIBRARIES for form in library.forms),
)
"""The forms of a source."""
