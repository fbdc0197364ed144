"""Render the description of an archive as text."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from itertools import groupby
from typing import TYPE_CHECKING

from fakexport.files import escaped
from fakexport.report.quantity import bytes_text, device_sizes, plural
from fakexport.report.table import layout, paragraphs, wrapped

if TYPE_CHECKING:
    from fakexport.archive import ArchiveDescription, MethodDescription, MethodManifest
    from fakexport.exporting.interface import SymbolRange, ValueSummary

_MARGIN = 14
_WEIGHTS = {
    "none": "not in the archive; bind a checkpoint to load them",
    "inside": "in the archive",
    "linked": "in files next to the archive",
}


def render_archive(found: ArchiveDescription, *, width: int = 100) -> str:
    """Return one paragraph per property of the archive; empty paragraphs are left out.

    For a bundle, the properties that all methods share come first, followed by one section per method. The
    text has no colors, and the same archive always produces the same text. A list shows at most 12 items;
    `to_dict` returns all items.
    """
    is_one = len(found.methods) == 1
    bundle = "" if is_one else f", a bundle of {plural(len(found.methods), 'method')}"
    head = escaped(f"{found.path}: {bytes_text(found.file_bytes)}{bundle}")
    lines = [head, *(line for note in found.notes for line in wrapped(f"note: {note}", width)), ""]
    lines += paragraphs(_of_one(found) if is_one else _common(found), width=width, margin=_MARGIN)
    for method, about in found.methods.items() if not is_one else ():
        own = [*_method(about, found.has_manifest), ("constants", list(_constants(about)))]
        lines += ["", f"method {method}", *paragraphs(own, width=width, margin=_MARGIN)]
    return "\n".join(lines) + "\n"


def _of_one(found: ArchiveDescription) -> Iterator[tuple[str, list[str]]]:
    """Yield the title and lines of each paragraph about an archive with one program."""
    about = found.only
    names = about.manifest.prefix
    yield from _method(about, found.has_manifest)
    yield "names", [] if names is None else [_names_in_checkpoint(names)]
    yield "constants", list(_constants(about))
    yield "records", [_records(about.records if found.manifest.is_bundle else found.records, found)]


def _common(found: ArchiveDescription) -> Iterator[tuple[str, list[str]]]:
    """Yield the title and lines of each paragraph that applies to all methods of a bundle."""
    manifest = found.manifest
    whole, shared = found.weights, found.shared_weights
    yield "methods", [", ".join(found.methods)]
    yield (
        "weights",
        [
            f"{plural(whole.count, 'tensor')}, {bytes_text(whole.bytes)}; {shared.count:,} of them, "
            f"{bytes_text(shared.bytes)}, are shared by several methods and stored once"
        ],
    )
    prefixes = ((method, about.prefix) for method, about in manifest.methods.items())
    yield (
        "names",
        [f"{method}: {_names_in_checkpoint(prefix)}" for method, prefix in prefixes if prefix is not None],
    )
    yield "records", [_records(found.records, found)]


_NO_FACTS = "unknown: the program was exported by torch, not by fakexport"


def _method(found: MethodDescription, has_manifest: bool) -> Iterator[tuple[str, list[str]]]:
    """Yield the title and lines of each paragraph that describes one program."""
    manifest, program = found.manifest, found.program
    versions = dict(manifest.versions) or ({"torch": program.torch_version} if program.torch_version else {})
    yield (
        "written by",
        [", ".join(f"{name} {version}" for name, version in versions.items())] * bool(versions),
    )
    yield "source", [manifest.source or _NO_FACTS] * (bool(manifest.source) or has_manifest)
    yield "target", [manifest.topology or ""] * bool(manifest.topology)
    rank = manifest.parallel
    yield "rank", [] if rank is None else [f"{rank.rank} of {rank.ranks} ({rank.degrees})"]
    stage = manifest.stage
    begin = f", which begins at {stage.start}" if stage is not None and stage.start else ""
    yield "stage", [] if stage is None else [f"{stage.stage} of {stage.stages}{begin}"]
    yield "device map", _device_map(manifest.device_map)
    yield "dtype", [manifest.dtype or ""] * bool(manifest.dtype)
    yield "dynamic", [manifest.dynamic_shapes or ""] * bool(manifest.dynamic_shapes)
    yield "ranges", [_range(symbol, bounds) for symbol, bounds in program.range_constraints.items()]
    yield "conditions", list(program.conditions)
    yield "not checked", list(manifest.skipped_checks)
    yield "inputs", _values(program.inputs)
    yield "outputs", _values(program.outputs)
    yield (
        "operators",
        [f"{plural(program.call_count, 'call')} of {plural(len(program.operators), 'operator')}"],
    )
    classes = [f"objects of the C++ class {name}" for name in program.library_classes]
    made = {name: f", defined by {module}" for name, module in manifest.library_modules.items()}
    operators = [f"{name} is not a torch operator{made.get(name, '')}" for name in program.library_operators]
    yield "libraries", operators + classes
    yield "needs --trust", [f"{name} {reason}" for name, reason in program.refused_operators.items()]
    yield "missing", [f"{name}: {reason}" for name, reason in program.missing_operators.items()]
    yield "weights", list(_weights(manifest))


def _device_map(device_map: Mapping[str, str]) -> list[str]:
    """Return a line per run of modules on the same device: `cuda:0 model.embed_tokens .. model.layers.15`."""
    paths = sorted(device_map, key=_in_counting_order)
    rows = [(device, list(row)) for device, row in groupby(paths, key=lambda path: device_map[path])]
    others = "(all other modules)"
    cells = [(device, row[0] or others, f".. {row[-1]}" * (len(row) > 1)) for device, row in rows]
    return [line.rstrip() for line in layout(cells)]


def _in_counting_order(path: str) -> list[tuple[bool, int, str]]:
    return [(not part.isdecimal(), int(part) if part.isdecimal() else 0, part) for part in path.split(".")]


def _range(symbol: str, bounds: SymbolRange) -> str:
    lower = "" if bounds.lower is None else str(bounds.lower)
    return f"{symbol} {lower}..{'' if bounds.upper is None else bounds.upper}"


def _values(values: Sequence[ValueSummary]) -> list[str]:
    return layout([_value(value) for value in values])


def _value(value: ValueSummary) -> tuple[str, str, str]:
    name = value.name if value.kind.startswith("user_") else f"{value.name} ({value.kind.replace('_', ' ')})"
    if value.shape is None:
        return name, f"{value.dtype} {value.value}" if value.value is not None else value.dtype, ""
    return name, f"{value.dtype}[{', '.join(value.shape)}]", value.device or ""


def _names_in_checkpoint(prefix: tuple[str, str]) -> str:
    """Return a clause on how weight names in a checkpoint differ from those in the program."""
    outside, inside = prefix
    return f"a weight `{inside}*` of the program is named `{outside}*` in a checkpoint"


def _weights(manifest: MethodManifest) -> Iterator[str]:
    totals = manifest.totals
    if not totals.count:
        yield "none"
        return
    tied = sum(bool(tensor.aliases) for tensor in manifest.tensors)
    also = f", {tied} of them tied" if tied else ""
    where = _WEIGHTS[manifest.weights]
    yield f"{plural(totals.count, 'tensor')}{also}, {bytes_text(totals.bytes)}, {where}"
    yield ", ".join(f"{dtype} {bytes_text(size)}" for dtype, size in totals.by_dtype.items())
    yield device_sizes(totals.by_device)


def _constants(found: MethodDescription) -> Iterator[str]:
    with_value = [constant for constant in found.constants if constant.reason is None]
    size = bytes_text(sum(constant.bytes for constant in with_value))
    yield f"{len(with_value):,} with values, {size}" if found.constants else "none"
    for constant in found.constants:
        if constant.reason is not None:
            yield f"without a value: {constant.name}: {constant.reason}"


def _records(records: Mapping[str, int], found: ArchiveDescription) -> str:
    held = "each with a sha256 in the manifest" if found.has_manifest else "with CRC-32 checksums only"
    return f"{len(records):,}, {held}; no weights were read"
