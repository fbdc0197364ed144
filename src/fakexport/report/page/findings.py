"""Parts of an HTML page that show diagnostics, and explain their codes."""

from __future__ import annotations

import linecache
from collections.abc import Collection, Iterable, Iterator
from difflib import unified_diff
from pathlib import Path

from fakexport.report.page.document import (
    Code,
    Explanation,
    Finding,
    Findings,
    Fixing,
    Items,
    Paragraph,
    Part,
    Section,
)
from fakexport.report.transfer_listing import place_text
from fakexport.rules import Rule, all_rules
from fakexport.rules.diagnostics import Change, Diagnostic, Fix, edited_text, source_and_facts

_MOST_OPEN = 20


def finding_list(diagnostics: Iterable[Diagnostic]) -> Findings:
    """Return the diagnostics in order. If there are many, only the first error is expanded."""
    found = list(diagnostics)
    first = next((each for each in found if each.severity == "error"), None)
    return Findings(tuple(_finding(each, len(found) <= _MOST_OPEN or each is first) for each in found))


def _finding(found: Diagnostic, is_open: bool) -> Finding:
    source, facts = source_and_facts(found)
    place = "" if found.primary is None else place_text(found.primary.span)
    owner = (found.module_path, found.node)[found.module_path is None]
    where = " in ".join(text for text in (place, owner) if text)
    times = f" ({found.count:,} times)" if found.count > 1 else ""
    message, fix = f"{found.message}{times}", None if found.fix is None else _fixing(found.fix)
    return Finding(found.code, found.severity, message, where, source, facts, fix, is_open)


def _fixing(fix: Fix) -> Fixing:
    """Return a fix with its command or, if a change was verified, with a patch."""
    patch = _patch(fix.changes[0]) if fix.is_verified and fix.changes else ""
    return Fixing(fix.title, fix.message, fix.command or patch)


def _patch(change: Change) -> str:
    """Return the edits of a change as a patch that `git apply` and `patch -p1` accept in the current folder.

    Files outside of it are named from the root folder.
    """
    lines: list[str] = []
    for path in dict.fromkeys(edit.path for edit in change.edits):
        before = linecache.getlines(path)
        after = edited_text(before, (edit for edit in change.edits if edit.path == path))
        place = Path(path).absolute()
        is_here = place.is_relative_to(Path.cwd())
        name = place.relative_to(Path.cwd() if is_here else place.anchor).as_posix()
        lines += unified_diff(before, after.splitlines(keepends=True), f"a/{name}", f"b/{name}")
    return "".join(lines)


def explanations(codes: Collection[str]) -> Section:
    """Return a section that explains each of the codes once; unknown codes are ignored."""
    known = (rule for rule in all_rules() if rule.code in codes)
    return Section("Explanations", tuple(map(_explanation, known)))


def _explanation(rule: Rule) -> Explanation:
    texts = (*_parts(rule.why), Paragraph("How to fix it:"), *_parts(rule.how_to_repair))
    example = (Code(rule.failing_model),) if rule.failing_model else ()
    repair = (Paragraph("The same model, repaired:"), Code(rule.repair)) if rule.repair else ()
    about = (Paragraph("A model with this fault (the marked line is the cause):"),) if example else ()
    return Explanation(rule.code, rule.message, (*texts, *about, *example, *repair))


def _parts(markdown: str) -> Iterator[Part]:
    """Yield the blocks of a rule's text: paragraphs, lists and code. Rules use no other Markdown."""
    for at, text in enumerate(markdown.split("```")):
        if at % 2:
            yield Code(text.partition("\n")[2].rstrip("\n"))
            continue
        for block in text.strip().split("\n\n"):
            if block.startswith("- "):
                yield Items(tuple(" ".join(item.split()) for item in f"\n{block}".split("\n- ")[1:]))
            elif block:
                yield Paragraph(" ".join(block.split()))
