"""What a bundle holds as text for people."""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING

from fakexport.documents.escaping import escaped
from fakexport.report.archive_text import archive_paragraphs, names_in_checkpoint, paragraph_lines
from fakexport.report.archive_totals import WeightTotals, shared_tensors
from fakexport.report.quantity import bytes_text, plural
from fakexport.report.table import wrapped

if TYPE_CHECKING:
    from fakexport.archive import BundleDescription

__all__ = ["render_bundle"]

_SAID_OF_ALL = ("names", "records")


def render_bundle(found: BundleDescription, *, width: int = 100) -> str:
    """Returns what the methods have in common, then a section for each, as `render_archive` has it.

    Args:
        found: From `archive.describe_bundle`.
        width: Columns of text that there is room for.
    Returns:
        Text that ends in one line end.
    """
    count = plural(len(found.methods), "method")
    head = escaped(f"{found.path}: {bytes_text(found.file_bytes)}, a bundle of {count}")
    lines = [head, *(line for note in found.notes for line in wrapped(f"note: {note}", width)), ""]
    lines += paragraph_lines(_common(found), width=width)
    for method, about in found.methods.items():
        paragraphs = (part for part in archive_paragraphs(about) if part[0] not in _SAID_OF_ALL)
        lines += ["", f"method {method}", *paragraph_lines(paragraphs, width=width)]
    return "\n".join(lines) + "\n"


def _common(found: BundleDescription) -> Iterator[tuple[str, list[str]]]:
    manifest = found.manifest
    whole, shared = WeightTotals.of(manifest.tensors), WeightTotals.of(shared_tensors(manifest))
    yield "methods", [", ".join(found.methods)]
    yield (
        "weights",
        [
            f"{plural(whole.count, 'tensor')}, {bytes_text(whole.bytes)}; {shared.count:,} of them, "
            f"{bytes_text(shared.bytes)}, are in several methods and there once"
        ],
    )
    yield (
        "names",
        [f"{method}: {names_in_checkpoint(prefix)}" for method, prefix in manifest.prefixes.items()]
        * found.has_manifest,
    )
    held = "each with a sha256 in the manifest" if found.has_manifest else "with CRC-32, without hashes"
    yield "records", [f"{len(found.records):,}, {held}; of the weights none was read"]
