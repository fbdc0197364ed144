"""Render the module tree of a model as text, with parameters, bytes and devices."""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING

from fakexport.files import escaped
from fakexport.report.quantity import bytes_text, device_names, device_sizes, elements_text
from fakexport.report.table import wide_layout, wrapped

if TYPE_CHECKING:
    from fakexport.exporting.program import ModuleSummary

_HEAD = ("module", "class", "params", "bytes", "dtype", "device", "tied to")
_RIGHT = (2, 3)
_IF_THEY_DIFFER = (4, 5)


def render_modules(root: ModuleSummary, *, width: int = 100) -> str:
    """Return one line per module, each below the line of its parent, and a last line with totals.

    Consecutive identical modules are merged into one line, `0-125 126 x LlamaDecoderLayer`. The numbers in
    this line, and the lines below it, describe the first module. Bytes include parameters and buffers. A
    dtype or device that all modules share appears only in the last line.
    """
    rows = list(_rows(root, depth=0))
    used = [i for i in range(len(_HEAD)) if len({row[i] for row in rows} - {""}) > (i in _IF_THEY_DIFFER)]
    shown = [[row[i] for i in used] for row in (_HEAD, *rows)]
    lines = wide_layout(shown, width=width, right=[used.index(i) for i in _RIGHT])
    return "\n".join([*lines, "", *wrapped(_totals(root), width)]) + "\n"


def _rows(entry: ModuleSummary, depth: int) -> Iterator[tuple[str, ...]]:
    yield (
        "  " * depth + escaped(entry.name or "(root)"),
        escaped(f"{entry.count} x {entry.class_name}" if entry.count > 1 else entry.class_name),
        elements_text(entry.total_parameters),
        bytes_text(entry.total_bytes),
        entry.dtypes[0] if len(entry.dtypes) == 1 else "mixed" if entry.dtypes else "",
        device_names(entry.devices),
        escaped(", ".join(entry.tied_to)),
    )
    for child in entry.children:
        yield from _rows(child, depth + 1)


def _totals(root: ModuleSummary) -> str:
    """Return `35.6K parameters, 20 buffer elements, float32, 139.0 KiB: cpu 129.0 KiB, cuda:0 10.0 KiB`."""
    noun = "parameter" if root.total_parameters == 1 else "parameters"
    parts = [f"{elements_text(root.total_parameters)} {noun}"]
    if root.total_buffers:
        parts.append(f"{elements_text(root.total_buffers)} buffer elements")
    parts += [*root.dtypes, bytes_text(root.total_bytes)]
    text = ", ".join(parts)
    if len(root.devices) == 1:
        return f"{text} on {root.devices[0]}"
    return f"{text}: {device_sizes(root.bytes_per_device)}" if root.devices else text
