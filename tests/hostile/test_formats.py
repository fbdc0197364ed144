"""No text of a model or a file is a command, a link or markup in a format that someone else reads."""

from __future__ import annotations

import io
import json
import re
from contextlib import redirect_stdout

import pytest
from hypothesis import example, given
from hypothesis import strategies as st
from markdown_it import MarkdownIt

from fakexport.cli.streams import write_formatted, write_output
from fakexport.diagnostics import escaped, escaped_lines
from fakexport.report.markdown import _code
from fakexport.report.sarif import _plain

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


def printed(text: str, output_format: str) -> str:
    out = io.StringIO()
    with redirect_stdout(out):
        write_formatted(text, output_format)
    return out.getvalue()


@given(text=TEXT)
@pytest.mark.parametrize("output_format", ["text", "json", "markdown"])
def test_a_log_of_github_has_no_command(output_format: str, text: str) -> None:
    """As actions/runner looks for them: `::` at the start of a line, `##[` anywhere."""
    for line in printed(text, output_format).splitlines():
        assert "##[" not in line
        assert not line.lstrip().startswith("::")


def test_a_command_of_ours_stays_one() -> None:
    assert printed("::error title=FE201::a ##[b]\n", "github") == "::error title=FE201::a #\\u0023[b]\n"


@given(text=TEXT)
def test_json_is_the_same_value(text: str) -> None:
    out = io.StringIO()
    with redirect_stdout(out):
        write_output(json.dumps({"a": text}, indent=2))

    assert json.loads(out.getvalue()) == {"a": text}


@given(text=TEXT)
@example(text="[x](javascript:alert(1))")
def test_a_cell_of_markdown_is_text(text: str) -> None:
    """The parser is that of CommonMark, with GitHub's tables."""
    tokens = MarkdownIt("commonmark").enable("table").parse(f"| a |\n|---|\n| {_code(text)} |\n")
    (_, cell) = [token for token in tokens if token.type == "inline"]
    kinds = {child.type for child in cell.children or ()}
    shown = "".join(child.content for child in cell.children or () if child.type in ("text", "text_special"))

    assert kinds <= {"html_inline", "text", "text_special"}
    assert [child.content for child in cell.children or () if child.type == "html_inline"] == [
        "<code>",
        "</code>",
    ]
    assert shown.split() == escaped(text).split()


@given(text=TEXT)
def test_a_message_of_sarif_has_no_link(text: str) -> None:
    """A reader drops the backslashes, and takes brackets without one for a link: section 3.11.6."""
    message = _plain(text)

    assert re.sub(r"\\(.)", r"\1", message, flags=re.S) == escaped_lines(text)
    assert not re.search(r"(?<!\\)(?:\\\\)*\[", re.sub(r"\\\\", "", message))
