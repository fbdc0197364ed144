"""Render a document as HTML of limited size: a self-contained page, or a part of a notebook."""

from __future__ import annotations

import base64
import hashlib
import re
from collections.abc import Callable, Collection
from dataclasses import dataclass, fields, is_dataclass, replace
from functools import cache
from importlib import resources
from typing import TYPE_CHECKING, Any

from fakexport.files import escaped_lines
from fakexport.report.page.document import (
    Branch,
    Cell,
    Code,
    Document,
    Explanation,
    Finding,
    Findings,
    Items,
    Row,
    Section,
    Table,
    Tree,
)

if TYPE_CHECKING:
    from jinja2 import Environment

MOST_PAGE_BYTES = 1_000_000
_MOST_NOTEBOOK_BYTES = 200_000


def render_page(document: Document) -> str:
    """Return a page of less than 1 MB. Its content security policy forbids loading resources.

    All text of a document is treated as untrusted: markup and characters that change the text direction are
    displayed, not interpreted. Without JavaScript, only search, sorting, filters, copy buttons and the dark
    mode are missing.
    """
    style, script = _asset("page.css"), _asset("page.js")
    policy = (
        f"default-src 'none'; style-src {_digest(style)}; script-src {_digest(script)}; "
        "base-uri 'none'; form-action 'none'"
    )
    template = _templates().get_template("page.html.jinja")
    return fitted(
        document,
        lambda cut: template.render(
            document=cut, linked=_linked(cut), style=style, script=script, policy=policy
        ),
        MOST_PAGE_BYTES,
    )


def render_in_notebook(document: Document) -> str:
    """Return the HTML for a notebook: like `render_page`, but shorter and without scripts."""
    template = _templates().get_template("notebook.html.jinja")
    style = _asset("page.css")
    explained = [
        each for each in document.sections if not _codes(each)
    ]  # A notebook has no places to link to.
    document = replace(document, sections=tuple(explained))
    return fitted(
        document, lambda cut: template.render(document=cut, linked=(), style=style), _MOST_NOTEBOOK_BYTES
    )


@cache
def _templates() -> Environment:
    from jinja2 import Environment, PackageLoader, StrictUndefined

    environment = Environment(
        loader=PackageLoader("fakexport.report.page", package_path=""),
        autoescape=True,
        undefined=StrictUndefined,
        finalize=_shown,
        trim_blocks=True,
        lstrip_blocks=True,
    )
    environment.filters["rich"] = _rich
    return environment


def _shown(value: Any) -> Any:
    """Make invisible and direction-changing characters of plain strings visible; keep markup unchanged."""
    return escaped_lines(value) if type(value) is str else value


_RICH = re.compile(r"`([^`\n]+)`|\b(FE[0-9]{3})\b")


def _rich(text: str, linked: Collection[str]) -> Any:
    """Return a text as markup: code between backticks, and the codes of `linked` as links."""
    from markupsafe import Markup, escape

    def marked(found: re.Match[str]) -> Any:
        if found[1] is not None:
            return Markup("<code>{}</code>").format(found[1])
        return Markup('<a href="#{0}">{0}</a>').format(found[2]) if found[2] in linked else found[2]

    parts, end = [], 0
    text = escaped_lines(text)
    for found in _RICH.finditer(text):
        parts += [text[end : found.start()], marked(found)]
        end = found.end()
    return Markup("").join(map(escape, [*parts, text[end:]]))


def _codes(section: Section) -> set[str]:
    return {part.code for part in section.parts if isinstance(part, Explanation)}


def _linked(document: Document) -> set[str]:
    """Return the codes that the page explains."""
    return set().union(*map(_codes, document.sections))


@cache
def _asset(name: str) -> Any:
    """Return a file of this package as trusted markup."""
    from markupsafe import Markup

    return Markup((resources.files(__package__) / name).read_text(encoding="utf-8"))


def _digest(text: str) -> str:
    """Return the source expression of a content security policy that allows only this inline text."""
    return f"'sha256-{base64.b64encode(hashlib.sha256(text.encode()).digest()).decode()}'"


_LONGER = 20


@dataclass(frozen=True)
class _Room:
    """Size limits: sections, parts per section, rows per table, expandable rows, characters."""

    sections: int
    parts: int
    rows: int
    details: int
    characters: int


# The first limits allow the largest page that a browser displays without delay; any document fits the last.
_ROOMS = (
    _Room(1_000, 200, 20_000, 20_000, 2_000),
    _Room(1_000, 200, 20_000, 1_000, 1_000),
    _Room(1_000, 100, 10_000, 200, 300),
    _Room(400, 100, 4_000, 200, 300),
    _Room(200, 50, 1_000, 100, 300),
    _Room(100, 20, 200, 50, 200),
    _Room(50, 10, 40, 10, 120),
    _Room(20, 5, 5, 0, 60),
)


def fitted(document: Document, render: Callable[[Document], str], most_bytes: int) -> str:
    """Return the document as HTML of at most `most_bytes`, with as much content as fits.

    Expandable content is dropped first, then rows from the end of tables.
    """
    text = ""
    for room in _ROOMS:
        text = render(_cut(document, room))
        if len(text.encode()) <= most_bytes:
            break
    return text


def _cut(value: Any, room: _Room) -> Any:
    """Truncate a part of the document to the limits of the page, recursively."""
    if isinstance(value, str):
        return _clipped(value, room.characters)
    if isinstance(value, Cell):
        return value if len(value.text) <= room.characters else replace(value, text=_cut(value.text, room))
    if isinstance(value, tuple):
        return tuple(_cut(item, room) for item in value)
    if isinstance(value, Code):
        return Code(_clipped(value.text, _LONGER * room.characters))
    if isinstance(value, Table):
        rows = tuple(
            _without_details(row, at < room.details) for at, row in enumerate(value.rows[: room.rows])
        )
        value = replace(value, rows=rows, left_out=value.left_out + len(value.rows) - len(rows))
    elif isinstance(value, Tree):
        left = [room.rows]
        roots = tuple(kept for root in value.roots if (kept := _branch(root, left)) is not None)
        value = replace(value, roots=roots, left_out=value.left_out + max(0, -left[0]))
    elif isinstance(value, Findings):
        findings = tuple(
            each if at < room.details else replace(each, source="", facts=())
            for at, each in enumerate(value.findings[: room.rows])
        )
        value = Findings(findings, value.left_out + len(value.findings) - len(findings))
    elif isinstance(value, Finding):
        value = replace(value, source=_clipped(value.source, _LONGER * room.characters))
    elif isinstance(value, Items):
        value = Items(value.items[: room.rows], value.left_out + max(0, len(value.items) - room.rows))
    elif isinstance(value, Document):
        lost = max(0, len(value.sections) - room.sections)
        value = replace(value, sections=value.sections[: room.sections], left_out=lost)
    elif isinstance(value, Section):
        lost = max(0, len(value.parts) - room.parts)
        value = replace(value, parts=value.parts[: room.parts], left_out=value.left_out + lost)
    if not is_dataclass(value) or isinstance(value, type):
        return value
    return replace(value, **{each.name: _cut(getattr(value, each.name), room) for each in fields(value)})


def _without_details(row: Row, has_room: bool) -> Row:
    return row if has_room or not row.details else replace(row, details=(), is_open=False)


def _branch(branch: Branch, left: list[int]) -> Branch | None:
    """Cut a branch to `left[0]` lines, and subtract its length; a negative `left[0]` counts cut lines."""
    left[0] -= 1
    is_kept = left[0] >= 0
    children = tuple(kept for child in branch.children if (kept := _branch(child, left)) is not None)
    return replace(branch, children=children) if is_kept else None


def _clipped(text: str, most: int) -> str:
    return text if len(text) <= most else f"{text[:most]}… ({len(text):,} characters)"
