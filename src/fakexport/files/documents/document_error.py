"""Errors about an untrusted file or document."""

from __future__ import annotations

from fakexport.error import FakexportError
from fakexport.files import escaped


class DocumentError(FakexportError, ValueError):
    """A document or a part of it is invalid. The message is a single line.

    Args:
        reason: The fault, without its place in the document.
        place: Steps from the innermost to the outermost. For example, `["name", "[0]", "inputs"]` is
            `inputs[0].name`.
        is_trust_missing: Whether the document would be accepted if the user trusted it.
    """

    def __init__(
        self, reason: str, place: list[str] | None = None, *, is_trust_missing: bool = False
    ) -> None:
        super().__init__(reason)
        self.reason = reason
        self.is_trust_missing = is_trust_missing
        self._steps = place or []

    def within(self, step: str) -> DocumentError:
        """Add an outer step, a field name or `[index]`, to the error's place, and return the error."""
        self._steps.append(step)
        return self

    @property
    def place(self) -> str:
        """Place in the document, such as `graph.nodes[12].inputs[0].arg`; "" if unknown."""
        text = ""
        for step in reversed(self._steps):
            # A step may be a key from the untrusted document, so escape it.
            shown = escaped(step)
            text += shown if shown.startswith("[") or not text else f".{shown}"
        return text

    def __str__(self) -> str:
        line = escaped(" ".join(self.reason.split()))
        line = line if len(line) <= 500 else f"{line[:500]}..."
        return f"{self.place}: {line}" if self._steps else line
