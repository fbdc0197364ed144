"""What is wrong with a file or a document from an untrusted author."""

from __future__ import annotations

from fakexport.diagnostics import escaped
from fakexport.error import FakexportError


class DocumentError(FakexportError, ValueError):
    """A document, or a part of it, that cannot be read; the text is one line.

    Args:
        reason: What is wrong, without saying where.
        place: Steps from the inside to the outside: `["name", "[0]", "inputs"]` is `inputs[0].name`.
        is_trust_missing: Whether the document would be read if its author were trusted.
    """

    def __init__(
        self, reason: str, place: list[str] | None = None, *, is_trust_missing: bool = False
    ) -> None:
        super().__init__(reason)
        self.reason = reason
        self.is_trust_missing = is_trust_missing
        self._steps = place or []

    def within(self, step: str) -> DocumentError:
        """Return the same fault, seen from one step further out; `step` is a field name or `[index]`."""
        self._steps.append(step)
        return self

    @property
    def place(self) -> str:
        """Where in the document: `graph.nodes[12].inputs[0].arg`; "" where that is unknown."""
        text = ""
        for step in reversed(self._steps):
            # A step may be a key that the document chose itself.
            shown = escaped(step)
            text += shown if shown.startswith("[") or not text else f".{shown}"
        return text

    def __str__(self) -> str:
        line = escaped(" ".join(self.reason.split()))
        line = line if len(line) <= 500 else f"{line[:500]}..."
        return f"{self.place}: {line}" if self._steps else line
