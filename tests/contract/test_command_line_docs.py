"""docs/cli.md and the commands have the same options."""

import re

import pytest
import typer

from fakexport.cli.app import app
from tests.contract.source_tree import ROOT

GROUP = typer.main.get_command(app)
TEXT = (ROOT / "docs" / "cli.md").read_text(encoding="utf-8")
_AS_FOR = re.compile(r"^\| `(--[a-z-]+)` \|[^|]*?\b[Aa]s for `([a-z-]+)`", re.MULTILINE)
_OPTION = re.compile(r"^\| `(--[a-z-]+)` \|", re.MULTILINE)


def section(command: str) -> str:
    """The text below the heading of a command; "" is what stands before all of them."""
    start = f"## `fakexport {command}" if command else "# The command line"
    return TEXT.partition(start)[2].partition("\n## ")[0]


def options(command) -> set[str]:
    return {name for parameter in shown(command) for name in parameter.opts if name.startswith("--")}


def shown(command) -> list:
    """The parameters of the help: old names of options are hidden."""
    return [parameter for parameter in command.params if not getattr(parameter, "hidden", False)]


@pytest.mark.parametrize("name", GROUP.commands)
def test_the_options_of_a_command_are_the_documented_ones(name):
    assert set(_OPTION.findall(section(name))) == options(GROUP.commands[name])


def test_the_options_of_the_program_are_the_documented_ones():
    assert set(_OPTION.findall(section(""))) - {"--help"} == options(GROUP)


def test_every_command_is_documented_and_no_other():
    assert re.findall(r"^fakexport ([\w-]+)", TEXT, re.MULTILINE) == list(GROUP.commands)


def test_every_option_has_help():
    for command in (GROUP, *GROUP.commands.values()):
        assert all(getattr(parameter, "help", None) for parameter in shown(command)), command.name


@pytest.mark.parametrize("name", GROUP.commands)
def test_an_option_as_for_another_command_has_its_help(name):
    texts = {option: texts_of(GROUP.commands[name])[option] for option, _ in _AS_FOR.findall(section(name))}

    assert texts == {
        option: texts_of(GROUP.commands[other])[option] for option, other in _AS_FOR.findall(section(name))
    }


def texts_of(command) -> dict[str, tuple]:
    """What the help shows of each option."""
    return {name: (option.metavar, option.help) for option in command.params for name in option.opts}
