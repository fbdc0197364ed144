"""Errors of cuts into pipeline stages."""

from __future__ import annotations

from torch.fx import Node

from fakexport.error import FakexportError
from fakexport.exporting.program import source_span


class StageError(FakexportError, ValueError):
    """A program cannot be cut into these stages. The message is a single line."""


class InseparableStages(StageError):
    """A stage needs what cannot be sent to it.

    Args:
        reason: The reason, as a sentence.
        nodes: The nodes to which it applies, and what each does. The most important one is first.
    """

    def __init__(self, reason: str, *nodes: tuple[Node, str]) -> None:
        super().__init__("; ".join((reason, *(f"{_at(node)} {what}" for node, what in nodes))))
        self.reason, self.nodes = reason, nodes


def _at(node: Node) -> str:
    span = source_span(node)
    return f"{node.name} ({span.path}:{span.line})" if span is not None else node.name
