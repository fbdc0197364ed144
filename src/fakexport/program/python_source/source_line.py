"""The line of the model behind an operation, as a comment."""

from __future__ import annotations

import re

from torch.fx import Node

from fakexport.program.source_span import source_span

from .names import comment_text

__all__ = ["source_line"]

_INSTALLED = re.compile(r".*[/\\](?:site|dist)-packages[/\\]")


def source_line(node: Node) -> str:
    """`modeling_gpt2.py:571 in forward: position_ids = ...`; "" where the graph does not tell.

    The folders of the machine that exported the program are left out.
    """
    span = source_span(node)
    if span is None:
        return ""
    path = _INSTALLED.sub("", span.path).replace("\\", "/")
    if path.startswith("/") or path[1:2] == ":":
        path = path.rpartition("/")[2]
    place = f"{path}:{span.line}"
    code = _code(node.meta["stack_trace"], span.path, span.line)
    return comment_text(f"{place}  {code}" if code else place)


def _code(trace: str, path: str, line: int) -> str:
    """The text of the line, which the trace has below the place."""
    lines = trace.splitlines()
    place = f'File "{path}", line {line}'
    for number in range(len(lines) - 2, -1, -1):
        found = lines[number].strip()
        if found == place or found.startswith(f"{place},"):
            code = lines[number + 1].strip()
            return "" if code.startswith('File "') else code
    return ""
