"""The line of the model for an operation, as a comment."""

from __future__ import annotations

from torch.fx import Node

from fakexport.program import SourcePaths, source_span

from .names import comment_text


def source_line(node: Node, paths: SourcePaths) -> str:
    """Return `model.py:571  position_ids = ...`, its path as in an archive.

    "" where the graph does not tell.
    """
    span = source_span(node)
    if span is None:
        return ""
    place = f"{paths.shortened(span.path)}:{span.line}"
    code = _code(node.meta["stack_trace"], span.path, span.line)
    return comment_text(f"{place}  {code}" if code else place)


def _code(trace: str, path: str, line: int) -> str:
    """Return the text of the line, which the trace has below the place."""
    lines = trace.splitlines()
    place = f'File "{path}", line {line}'
    for number in range(len(lines) - 2, -1, -1):
        found = lines[number].strip()
        if found == place or found.startswith(f"{place},"):
            code = lines[number + 1].strip()
            return "" if code.startswith('File "') else code
    return ""
