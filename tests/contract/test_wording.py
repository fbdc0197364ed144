"""How fakexport speaks: text that a user may read is free of phrases that have to be parsed twice.

Each pattern comes with what to write instead. A string that only looks like one of them is better
reworded than excepted.
"""

import re

import pytest
import typer

from fakexport.cli.app import app
from tests.contract.source_tree import ROOT
from tests.contract.user_visible_text import files_with_text, passages

# pattern -> what to write
REFUSED = {
    r"(?<![Tt]here )\b(is|was)\s+no\b(?! longer| more| less| later| earlier| larger| smaller)": "is not a",
    r"(?<![Tt]here )\b(are|were)\s+no\b(?! longer| more| less| later| earlier)": "are not",
    r"\bwants\b": "expects, needs",
    r"(?<!--weights )\bbeside\b": "next to, in addition to",
    r"\banew\b": "again",
    r"\b([Ss]ome|[Nn]o|[Aa]ny|[Ee]very)body\b": "someone, no one, anyone (or leave it out)",
    r"\b[Ww]hoever\b": "anyone who (or leave it out)",
    r"\bheld\s+against\b": "checked against, compared with",
    r"\bburn(ed|t|s)?[ -]in(to)?\b": "hard-coded, baked in",
    r"\botherwise\s+than\b": "differently from",
    r"\bgives\s+(the|a|an|what|it|one|no|another|other)\b(?! chance)": "returns, produces, prints",
    r"\blies\b": "is",
    r"\bstands?\b(?! for\b|-in|alone)": "is",
    r"\b(is|are|was|were)\s+told\b": "is reported, is shown",
    r"\bmend(s|ed|ing)?\b": "fix, repair",
    r"\bbe\s+had\b": "is not available, cannot be imported",
    r"\bmeanwhile\b": "while tracing, at run time",
    r"\bas\s+if\s+(someone|they)\s+meant\b": "an untrusted file",
    r"(?:^|[.:;]\s+)Of (a|an|the|all|each|every|its|these|those|what)\b": "begin with the subject",
    r"\b(is|are)\s+others\b": "differ",
    r"\b(is|are)\s+another\s+than\b": "is not the, differs from",
}

_COMPILED = {re.compile(pattern, re.MULTILINE): advice for pattern, advice in REFUSED.items()}


def stumbles() -> tuple[tuple[str, str], ...]:
    """Path and message of every refused phrase that a user may read."""
    return tuple(
        (
            str(path.relative_to(ROOT)),
            f"line {passage.line_at(match.start())}: {match.group()!r}: write {advice}",
        )
        for path in files_with_text()
        for passage in passages(path)
        for pattern, advice in _COMPILED.items()
        for match in pattern.finditer(passage.text)
    )


def test_what_users_read_is_plain_english():
    found = [f"{path}: {message}" for path, message in stumbles()]

    assert not found, "\n".join(found)


def test_help_texts_tell_what_to_do_and_ask_no_questions():
    commands = typer.main.get_command(app).commands.values()
    shown = [text for command in commands for text in (command.help, command.short_help)]
    shown += [option.help for command in commands for option in command.params]

    assert not [text for text in shown if "?" in text]
    assert not [
        text for text in shown if text.split(maxsplit=1)[0] in ("What", "Does", "Which", "Where", "Whether")
    ]


@pytest.mark.parametrize(
    "text",
    [
        "{} is no archive",
        "the checkpoint has an entry that no weight wants",
        "Of a bundle all methods are compiled",
        "checked as a whole. Of a file only the header is read",
        "differs otherwise than expected",
        "calling it gives the same values",
    ],
)
def test_a_stumbling_sentence_is_refused(text):
    assert any(pattern.search(text) for pattern in _COMPILED)


@pytest.mark.parametrize(
    "text",
    [
        "there is no entry for it",
        "it is no longer needed, and there are no others",
        "a stand-in, which stands for the tensor",
        "Of course it is",
        "it gives up",
    ],
)
def test_a_plain_sentence_passes(text):
    assert not any(pattern.search(text) for pattern in _COMPILED)
