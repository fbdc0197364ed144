"""docs/cli.md has a section for every command, with the options that its help shows."""

import re

from tools.option_tables import GROUP, PAGE, options, tables

TEXT = PAGE.read_text(encoding="utf-8")
SECTION = re.compile(r"^## `fakexport ([\w-]+).*\n((?:(?!## ).*\n)*)", re.MULTILINE)


def test_the_tables_are_current():
    assert tables(TEXT) == TEXT, "write them again: python tools/option_tables.py"


def test_every_command_has_a_section_in_the_order_of_the_help():
    assert [command for command, _ in SECTION.findall(TEXT)] == list(GROUP.commands)


def test_a_section_has_the_table_of_its_command():
    blocks = {
        command: re.findall(r"^<!-- (?!end)(.+) -->$", text, re.MULTILINE)
        for command, text in SECTION.findall(TEXT)
    }

    assert blocks == {name: [name] if any(options(each)) else [] for name, each in GROUP.commands.items()}


def test_every_argument_and_option_has_help():
    for command in (GROUP, *GROUP.commands.values()):
        assert all(each.help for each in command.params if not each.hidden), command.name
