"""A whole report, with a hostile text in each of its fields, has the structure of one with harmless texts.

The structure is what a parser of the format finds: tokens of Markdown, elements of HTML, keys of JSON,
commands of a log. Whatever a field contains may change texts alone.
"""

from __future__ import annotations

import dataclasses
import json
import re
from collections.abc import Callable
from html.parser import HTMLParser
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

import jsonschema
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from markdown_it import MarkdownIt

from fakexport.cli.streams import _shown
from fakexport.report import (
    ProjectReport,
    Report,
    check_document,
    render_markdown,
    render_page,
    render_report,
    render_sarif,
)
from fakexport.report import render_github as report_as_github
from fakexport.rules.diagnostics import Diagnostic
from tests.unit.report.sample_reports import full_report
from tests.unit.report.test_report_as_sarif import SCHEMA

HOSTILE = [
    "##[command]stop",
    "a ##[set-env name=PATH]x",
    "::error::x",
    "  ::stop-commands::x",
    "[x](javascript:alert(1))",
    "![x](http://a.b/c.png)",
    "<script>alert(1)</script>",
    "`a` | b",
    "@someone #1 https://a.b www.a.b a@b.c",
    "&#91;x&#93;(y)",
    "\\[x\\](y)",
    "*a* _b_ ~~c~~",
]
TEXT = st.one_of(
    st.sampled_from(HOSTILE),
    st.text(alphabet=st.sampled_from("#[]()<>:!`|*_\\&;@ \t\nax1./-"), max_size=30),
    st.text(max_size=20),
)

# One of a few words of ours; so is the headline of a diagnostic.
_OURS = {"code", "severity", "origin", "failed_stage", "fault", "kind", "aspect", "title", "what"}


def with_text(value: Any, text: str) -> Any:
    """The value with the text behind each text in it that a model or a file can choose."""
    if isinstance(value, str):
        return value + text
    if isinstance(value, tuple):
        return tuple(with_text(each, text) for each in value)
    if isinstance(value, dict):
        return {name: with_text(each, text) for name, each in value.items()}
    if dataclasses.is_dataclass(value) and not isinstance(value, type):
        changed = {
            field.name: with_text(getattr(value, field.name), text)
            for field in dataclasses.fields(value)
            if field.init and field.name not in _OURS and (type(value), field.name) != (Diagnostic, "message")
        }
        return dataclasses.replace(value, **changed)
    return value


def report_with(text: str) -> Report:
    made = full_report()
    named = [dataclasses.replace(each, notes=(*each.notes, text)) for each in made.verdicts]
    found = [with_text(each, text) for each in made.diagnostics]
    spans = [
        dataclasses.replace(
            each,
            labels=tuple(
                dataclasses.replace(label, span=dataclasses.replace(label.span, path=text or "x"))
                for label in each.labels
            ),
        )
        for each in found
    ]
    return dataclasses.replace(
        made, source=made.source + text, verdicts=tuple(named), diagnostics=(*found, *spans)
    )


class _Elements(HTMLParser):
    def __init__(self) -> None:
        super().__init__()
        self.found: list[Any] = []

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.found.append((tag, [name for name, _ in attrs]))

    def handle_endtag(self, tag: str) -> None:
        self.found.append(tag)

    def handle_comment(self, data: str) -> None:
        self.found.append("comment")


def elements(text: str) -> list[Any]:
    parser = _Elements()
    parser.feed(text)
    parser.close()
    return parser.found


def page(text: str) -> Any:
    found = elements(render_page(check_document(report_with(text))))
    return [each for each in found if each not in (("code", []), "code")]  # Between backticks is code.


def markdown(text: str) -> Any:
    made = render_markdown(ProjectReport((report_with(text),), {"a" + text: "b" + text}))
    tokens = MarkdownIt("commonmark").enable("table").parse(made)
    return [
        (
            token.type,
            elements(token.content) if token.type.startswith("html") else None,
            [
                (child.type, child.content if child.type == "html_inline" else None)
                for child in token.children or ()
                if not child.type.startswith("text")
            ],
        )
        for token in tokens
    ]


def sarif(text: str) -> Any:
    made = ProjectReport((report_with(text),), {"a" + text: "b" + text})
    log = json.loads(render_sarif(made, root=Path("/root")))
    jsonschema.Draft4Validator(SCHEMA).validate(log)
    uris: list[str] = re.findall(r'"uri": "([^"]*)"', json.dumps(log))
    assert all(urlsplit(uri).scheme in ("", "file", "https") for uri in uris)
    assert all(re.fullmatch(r"[\w.~%!$&'()*+,;=:@/?#-]*", uri, re.ASCII) for uri in uris)
    messages = [result["message"]["text"] for run in log["runs"] for result in run["results"]]
    assert all(line.isprintable() or "\t" in line for message in messages for line in message.split("\n"))
    assert not any(re.search(r"(?<!\\)\[", message.replace("\\\\", "")) for message in messages)
    return [len(run["results"]) for run in log["runs"]]


def log_of_github(text: str) -> Any:
    shown = _shown(report_as_github(report_with(text)), has_commands=True)
    commands = [line for line in shown.split("\n") if line.lstrip().startswith("::")]
    assert "##[" not in shown
    properties = [re.fullmatch(r"::(error|warning|notice) ([^:]*)::(.*)", line) for line in commands]
    return [
        (found[1], [each.partition("=")[0] for each in found[2].split(",")]) if found else None
        for found in properties
    ]


def terminal(text: str) -> Any:
    shown = _shown(render_report(report_with(text)))
    assert all(line.isprintable() for line in shown.replace("\t", " ").split("\n"))
    return [line for line in shown.split("\n") if re.match(r"\s*::|.*##\[", line)]


FORMATS = [page, markdown, sarif, log_of_github, terminal]
WORST = [
    *HOSTILE,
    "</script>",
    "</details>",
    "```\n~~~",
    "\x1b[2J",
    "\u202e",
    "\0",
    "\ud800",
    "\udcff",
    "\n::error::",
    "\r##[x]",
    "`",
    "-->",
    '" onclick="',
    "&lt;",
]


@pytest.mark.parametrize("structure", FORMATS)
@settings(max_examples=40)
@given(
    text=st.one_of(st.sampled_from(WORST), TEXT, st.text(st.characters(exclude_categories=()), max_size=8))
)
def test_a_text_changes_no_structure(structure: Callable[[str], Any], text: str) -> None:
    assert structure(text) == structure("x")


@pytest.mark.parametrize("text", WORST)
@pytest.mark.parametrize("structure", FORMATS)
def test_a_text_that_is_known_to_be_hostile(structure: Callable[[str], Any], text: str) -> None:
    assert structure(text) == structure("x")
