"""Reads a page as a browser would, strictly: every element is closed where it was opened."""

from __future__ import annotations

import base64
import hashlib
import re
from dataclasses import dataclass, field
from html.parser import HTMLParser

# Names that would be markup, code of a template, or steer what is shown.
HOSTILE = [
    "<script>alert(1)</script>",
    "</script></style></title><img src=x onerror=alert(1)>",
    "\"'><svg/onload=alert(1)>",
    "{{ 7 * 7 }}{% raw %}",
    "safe\u202egnp.exe\u2066\u200b\x1b[2J\x00",
]
VOID = {"meta", "input", "br", "hr", "img", "link"}


@dataclass
class Element:
    tag: str
    attributes: dict
    children: list = field(default_factory=list)

    @property
    def text(self):
        return "".join(child if isinstance(child, str) else child.text for child in self.children)

    def all(self, tag=None):
        for child in self.children:
            if isinstance(child, Element):
                if tag in (None, child.tag):
                    yield child
                yield from child.all(tag)


class _Reader(HTMLParser):
    def __init__(self):
        super().__init__(convert_charrefs=True)
        self.root = Element("", {})
        self.open = [self.root]

    def handle_starttag(self, tag, attributes):
        element = Element(tag, dict(attributes))
        assert len(element.attributes) == len(attributes), f"an attribute of {tag} is there twice"
        self.open[-1].children.append(element)
        if tag not in VOID:
            self.open.append(element)

    def handle_startendtag(self, tag, attributes):
        self.open[-1].children.append(Element(tag, dict(attributes)))

    def handle_endtag(self, tag):
        assert self.open[-1].tag == tag, f"</{tag}> closes <{self.open[-1].tag}>"
        self.open.pop()

    def handle_data(self, data):
        self.open[-1].children.append(data)


def read_page(text):
    """Return the root; fails where an element is not closed, or closed by another."""
    reader = _Reader()
    reader.feed(text)
    reader.close()
    assert len(reader.open) == 1, f"<{reader.open[-1].tag}> is never closed"
    return reader.root


def rows(root, caption):
    """Return the texts of the cells of the table whose caption begins so; details are left out."""
    table = next(t for t in root.all("table") if next(t.all("caption")).text.startswith(caption))
    body = next(table.all("tbody"))
    return [[_own(cell) for cell in row.children if isinstance(cell, Element)] for row in body.all("tr")]


def _own(cell):
    summary = next(cell.all("summary"), None)
    return (cell if summary is None else summary).text.strip()


def assert_loads_nothing(root):
    """Check that a page cannot ask for anything, and runs no script but ours."""
    policies = [m.attributes["content"] for m in root.all("meta") if "http-equiv" in m.attributes]
    (policy,) = policies
    directives = dict(part.strip().split(" ", 1) for part in policy.split(";"))
    for tag in ("style", "script"):
        (element,) = root.all(tag)
        assert not element.attributes
        digest = base64.b64encode(hashlib.sha256(element.text.encode()).digest()).decode()
        assert directives.pop(f"{tag}-src") == f"'sha256-{digest}'"
    assert directives == {"default-src": "'none'", "base-uri": "'none'", "form-action": "'none'"}
    for element in root.all():
        assert element.tag not in {"img", "iframe", "link", "object", "embed", "base", "form", "image", "use"}
        assert not {"src", "style", "srcset", "action"} & element.attributes.keys()
        assert not any(name.startswith("on") for name in element.attributes), element
        assert element.attributes.get("href", "#").startswith("#")
    assert not re.search(r"@import|url\(", next(root.all("style")).text)
