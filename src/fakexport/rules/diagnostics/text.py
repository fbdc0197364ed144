"""Format diagnostics as text, similar to the output of Rust and ruff."""

from __future__ import annotations

import linecache
import unicodedata
from collections.abc import Callable, Iterator
from pathlib import Path

from fakexport.files import escaped_lines
from fakexport.rules.diagnostics.diagnostic import Diagnostic, Fault, Label, Span

ReadSource = Callable[[str, int], str | None]

_MIN_NUMBER_WIDTH = 3
_TAB = " " * 4

_CAUSES: dict[Fault, str] = {
    "model": "the model",
    "inputs": "the inputs",
    "operator library": "the operator library",
    "torch": "torch",
    "fakexport": "fakexport",
    "target": "the target",
    "checkpoint": "the checkpoint",
}


def source_line(path: str, line: int) -> str | None:
    """Return one line of a source file, or None if it is not available.

    Paths may come from an untrusted archive, so only regular `*.py` files are opened. Lines that Python
    itself has put into `linecache`, such as notebook cells, are available too.
    """
    is_readable = path.endswith(".py") and Path(path).is_file()
    if not is_readable and path not in linecache.cache:
        return None
    return linecache.getline(path, line).rstrip("\r\n") or None


def source_text(span: Span | None) -> str | None:
    """Return the text that a span covers, or None if it has no columns or the source is not available."""
    if span is None or span.column is None or span.end_column is None:
        return None
    line = source_line(span.path, span.line)
    return None if line is None else line[span.column - 1 : span.end_column - 1].strip() or None


def render_text(diagnostic: Diagnostic, *, read_source: ReadSource = source_line) -> str:
    """Format a diagnostic as plain text, without colors and without a final line end.

    Control characters, and characters that reverse the direction of text, are escaped.

    Args:
        diagnostic: The diagnostic.
        read_source: Returns the source text for a path and line, or None. By default it reads the file.
            Without source text, a label's message is shown as `= here:`.

    Returns:
        Headline, position, source lines with carets, notes, cause (if it is not the model), targets and fix.

    Example:
        >>> print(render_text(Diagnostic("FE201", "error", "a branch depends on data", count=3)))
        error[FE201]: a branch depends on data (3 times)
    """
    sources, margin = _sources(diagnostic, read_source)
    lines = [_headline(diagnostic)]
    place = _place(diagnostic)
    if place:
        lines.append(f"{margin[2:]}--> {place}")
    lines += _snippets(diagnostic, sources, margin)
    for name, text in _footer(diagnostic, sources):
        lines += _aligned(f"{margin}= {name}: ", text)
    return "\n".join(escaped_lines(line).rstrip() for line in lines)


def source_and_facts(diagnostic: Diagnostic) -> tuple[str, tuple[tuple[str, str], ...]]:
    """Return the source lines with carets, and the notes, cause and targets as pairs of a name and a text."""
    sources, margin = _sources(diagnostic, source_line)
    lines = (escaped_lines(line).rstrip() for line in _snippets(diagnostic, sources, margin))
    return "\n".join(lines), tuple(_facts(diagnostic, sources))


def _sources(diagnostic: Diagnostic, read_source: ReadSource) -> tuple[dict[Label, str | None], str]:
    """Return the source line of each label, and the margin to the left of the source lines."""
    sources = {label: read_source(label.span.path, label.span.line) for label in diagnostic.labels}
    shown = [label for label, source in sources.items() if source is not None]
    width = max([_MIN_NUMBER_WIDTH, *(len(str(label.span.line)) for label in shown)])
    return sources, " " * (width + 1)


def _headline(diagnostic: Diagnostic) -> str:
    times = f" ({diagnostic.count} times)" if diagnostic.count > 1 else ""
    return f"{diagnostic.severity}[{diagnostic.code}]: {diagnostic.message}{times}"


def _place(diagnostic: Diagnostic) -> str:
    if diagnostic.primary is not None:
        return _position(diagnostic.primary.span, diagnostic.module_path)
    known = (("module", diagnostic.module_path), ("node", diagnostic.node))
    return ", ".join(f"{name} {value}" for name, value in known if value)


def _position(span: Span, module_path: str | None = None) -> str:
    """Return a position with module and function: `model.py:7:12  (model.layers.3, in forward)`."""
    position = f"{span.path}:{span.line}" + (f":{span.column}" if span.column is not None else "")
    if module_path and span.function:
        return f"{position}  ({module_path}, in {span.function})"
    name = module_path or span.function
    return f"{position}  ({name})" if name else position


def _snippets(diagnostic: Diagnostic, sources: dict[Label, str | None], margin: str) -> Iterator[str]:
    """Yield the source lines by file. The file with the primary label comes first."""
    by_path: dict[str, list[Label]] = {}
    for label in sorted(sources, key=lambda label: not label.is_primary):
        if sources[label] is not None:
            by_path.setdefault(label.span.path, []).append(label)
    for path, labels in by_path.items():
        labels.sort(key=lambda label: (label.span.line, label.span.column or 0))
        if diagnostic.primary is None or diagnostic.primary.span.path != path:
            yield f"{margin[2:]}==> {_position(labels[0].span)}"
        yield f"{margin}|"
        yield from _file_lines(labels, sources, margin)


def _file_lines(labels: list[Label], sources: dict[Label, str | None], margin: str) -> Iterator[str]:
    previous: int | None = None
    for label in labels:
        number, source = label.span.line, sources[label] or ""
        if previous is not None and number > previous + 1:
            yield "..."
        if number != previous:
            yield f"{number:>{len(margin) - 1}} | {_flat(source)}"
        previous = number
        yield from _underlined(label, source, margin)


def _underlined(label: Label, source: str, margin: str) -> Iterator[str]:
    """Yield the carets and the label's message, or only the message if there is no column."""
    span = label.span
    if span.column is None:
        indent = source[: len(source) - len(source.lstrip())]
        mark = "here:"
    else:
        indent = source[: span.column - 1]
        end = span.end_column or span.column + 1
        width = max(1, _display_width(_flat(source[span.column - 1 : end - 1])))
        mark = ("^" if label.is_primary else "-") * width
    if span.column is None and not label.message:
        return
    prefix = f"{margin}| {' ' * _display_width(_flat(indent))}{mark} "
    first, *rest = _aligned(prefix, label.message)
    yield first
    yield from (f"{margin}|{line[len(margin) + 1 :]}" for line in rest)


def _footer(diagnostic: Diagnostic, sources: dict[Label, str | None]) -> Iterator[tuple[str, str]]:
    yield from _facts(diagnostic, sources)
    if diagnostic.fix is not None:
        yield diagnostic.fix.title, diagnostic.fix.message
        if diagnostic.fix.command is not None:
            yield "run", diagnostic.fix.command


def _facts(diagnostic: Diagnostic, sources: dict[Label, str | None]) -> Iterator[tuple[str, str]]:
    for label, source in sources.items():
        if source is None and label.message:
            yield ("here" if label.is_primary else f"at {_position(label.span)}", label.message)
    for note in diagnostic.notes:
        yield "note", note
    if diagnostic.fault != "model":
        yield "cause", _CAUSES[diagnostic.fault]
    if diagnostic.targets:
        yield ("target" if len(diagnostic.targets) == 1 else "targets", ", ".join(diagnostic.targets))


def _aligned(prefix: str, text: str) -> list[str]:
    """Return the lines of a text with a prefix before the first. Later lines are aligned with the first."""
    first, *rest = text.strip("\n").split("\n")
    return [prefix + first, *(" " * len(prefix) + line for line in rest)]


def _flat(text: str) -> str:
    return escaped_lines(text.replace("\t", _TAB))


def _display_width(text: str) -> int:
    """Return the terminal width of a text: 2 columns for wide East Asian characters, 0 for accents."""
    widths = (
        0 if unicodedata.combining(c) else 2 if unicodedata.east_asian_width(c) in "WF" else 1 for c in text
    )
    return sum(widths)
