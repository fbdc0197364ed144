"""Write the tables of commands and options in docs/cli.md: run `python tools/option_tables.py`."""

import re
from collections import Counter
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import Any, NamedTuple

import typer

from fakexport.cli.app import app

PAGE = Path(__file__).parents[1] / "docs" / "cli.md"
GROUP: Any = typer.main.get_command(app)
_REFERENCE, _SHARED_HEADING = "check", "Shared options"
_SHARED_BY = 3
_BLOCK = re.compile(
    r"^<!-- (?P<name>[a-z][a-z -]+) -->\n(?P<body>.*?)^<!-- end -->$", re.DOTALL | re.MULTILINE
)
_HEADING = re.compile(r"^## `fakexport (?P<command>[\w-]+).*$", re.MULTILINE)
_FACTS = re.compile(r"  \[(?P<facts>[^]]*)\]$")


class Option(NamedTuple):
    """An option as `--help` shows it."""

    name: str
    shown: str
    meaning: str


def options(command: Any) -> Iterator[Option]:
    context = command.context_class(command)
    for parameter in command.params:
        if parameter.param_type_name == "option" and not parameter.hidden:
            shown, text = parameter.get_help_record(context)
            yield Option(parameter.opts[0], shown, _FACTS.sub(_fact, text))


def _fact(found: re.Match[str]) -> str:
    """Convert `  [default: (cpu); x>=1]` or `  [required]` to a sentence."""
    facts = found["facts"].split("; ")
    if "required" in facts:
        return " Required."
    return "".join(f" Default: `{fact[9:].strip('()')}`." for fact in facts if fact.startswith("default: "))


def tables(page: str) -> str:
    """Return the page with new content in each block between `<!-- NAME -->` and `<!-- end -->`."""
    headings = {found["command"]: found.group() for found in _HEADING.finditer(page)}
    return _BLOCK.sub(
        lambda block: f"<!-- {block['name']} -->\n{_body(block['name'], headings)}<!-- end -->", page
    )


def _body(name: str, headings: dict[str, str]) -> str:
    """Return the content of the block `commands`, `global options`, `shared options`, or of a command."""
    if name == "commands":
        return _table(
            ("command", "task"),
            (
                (f"[`{command}`]({_anchor(headings[command])})", each.get_short_help_str(200))
                for command, each in GROUP.commands.items()
            ),
        )
    if name == "global options":
        return _options(options(GROUP))
    found = {command: list(options(each)) for command, each in GROUP.commands.items()}
    counts = Counter(option for each in found.values() for option in each)
    shared = [
        option
        for option, count in counts.items()
        if count >= _SHARED_BY
        and option not in found[_REFERENCE]
        and not option.meaning.endswith("Required.")
    ]
    if name == "shared options":
        return _options(shared)
    if name == _REFERENCE:
        return _options(found[name])
    as_reference = [option for option in found[name] if option in found[_REFERENCE]]
    as_shared = [option for option in found[name] if option in shared]
    own = [option for option in found[name] if option not in as_reference + as_shared]
    links = (
        (f"[`{_REFERENCE}`]({_anchor(headings[_REFERENCE])})", as_reference),
        (f"[{_SHARED_HEADING.lower()}]({_anchor(_SHARED_HEADING)})", as_shared),
    )
    more = [
        f"See {link} for {', '.join(f'`{each.name}`' for each in same)}.\n" for link, same in links if same
    ]
    return "\n".join(part for part in (_options(own), "".join(more)) if part)


def _options(found: Iterable[Option]) -> str:
    return _table(("option", "meaning"), ((f"`{option.shown}`", option.meaning) for option in found))


def _table(head: tuple[str, ...], rows: Iterable[tuple[str, ...]]) -> str:
    written = [[cell.replace("|", r"\|") for cell in row] for row in rows]
    lines = [f"| {' | '.join(row)} |\n" for row in (head, *written)]
    return "".join([lines[0], f"|{'---|' * len(head)}\n", *lines[1:]]) if written else ""


def _anchor(heading: str) -> str:
    return "#" + re.sub(r"[^\w -]", "", heading.lstrip("# ").lower()).replace(" ", "-")


if __name__ == "__main__":
    PAGE.write_text(tables(PAGE.read_text(encoding="utf-8")), encoding="utf-8")
