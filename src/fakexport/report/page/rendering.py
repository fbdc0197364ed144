"""A document as HTML: a page that needs nothing but itself, or a part of a notebook."""

from __future__ import annotations

import base64
import hashlib
from functools import cache
from importlib import resources
from typing import TYPE_CHECKING, Any

from fakexport.diagnostics import printable_lines
from fakexport.report.page.document import Document
from fakexport.report.page.fitting import fitted

if TYPE_CHECKING:
    from jinja2 import Environment

MOST_PAGE_BYTES = 1_000_000
_MOST_NOTEBOOK_BYTES = 200_000


def render_page(document: Document) -> str:
    """Return a whole page of less than 1 MB, which loads nothing: its policy forbids that to the browser.

    Everything in a document counts as text from someone else: markup in it is shown, and so are characters
    that turn the direction of writing. Without script it is the same page, without sorting and filters.
    """
    style, script = _asset("page.css"), _asset("page.js")
    policy = (
        f"default-src 'none'; style-src {_digest(style)}; script-src {_digest(script)}; "
        "base-uri 'none'; form-action 'none'"
    )
    template = _templates().get_template("page.html.jinja")
    return fitted(
        document,
        lambda cut: template.render(document=cut, style=style, script=script, policy=policy),
        MOST_PAGE_BYTES,
    )


def render_in_notebook(document: Document) -> str:
    """Return the document as a part of a notebook: as `render_page`, shorter and without script."""
    template = _templates().get_template("notebook.html.jinja")
    style = _asset("page.css")
    return fitted(document, lambda cut: template.render(document=cut, style=style), _MOST_NOTEBOOK_BYTES)


@cache
def _templates() -> Environment:
    from jinja2 import Environment, PackageLoader, StrictUndefined

    return Environment(
        loader=PackageLoader("fakexport.report.page", package_path=""),
        autoescape=True,
        undefined=StrictUndefined,
        finalize=_shown,
        trim_blocks=True,
        lstrip_blocks=True,
    )


def _shown(value: Any) -> Any:
    """Return what a template prints: text without characters that hide or turn it; markup as it is."""
    return printable_lines(value) if type(value) is str else value


@cache
def _asset(name: str) -> Any:
    """Return a file of ours as it is."""
    from markupsafe import Markup

    return Markup((resources.files(__package__) / name).read_text(encoding="utf-8"))


def _digest(text: str) -> str:
    """Return the source expression of a policy that allows this text within an element, and no other."""
    return f"'sha256-{base64.b64encode(hashlib.sha256(text.encode()).digest()).decode()}'"
