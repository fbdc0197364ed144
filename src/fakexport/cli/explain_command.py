"""`fakexport explain`."""

from __future__ import annotations

from typing import Annotated

import typer

from fakexport.cli.streams import write_output


def explain_command(
    code: Annotated[
        str | None,
        typer.Argument(metavar="CODE", help="Code or name of a diagnostic, such as FE201."),
    ] = None,
    is_all: Annotated[
        bool, typer.Option("--all", help="Print the pages of all rules, as in docs/rules.md.")
    ] = False,
) -> None:
    """Explain a diagnostic, with a model that triggers it and the fix. Without a code: list all."""
    from fakexport.report import explain, explain_all, render_rules
    from fakexport.rules import all_rules

    if is_all:
        if code is not None:
            raise typer.BadParameter("give a code or --all, not both")
        write_output(explain_all())
        return
    write_output(render_rules(all_rules()) if code is None else explain(code))
