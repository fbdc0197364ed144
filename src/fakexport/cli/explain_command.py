"""`fakexport explain`."""

from __future__ import annotations

from typing import Annotated

import typer

from fakexport.cli.streams import write_output

__all__ = ["explain_command"]


def explain_command(
    code: Annotated[
        str | None,
        typer.Argument(
            metavar="CODE", show_default=False, help="Code or name of a diagnostic, such as FE201."
        ),
    ] = None,
) -> None:
    """What a diagnostic means, a model that shows it, and how to repair it. Without a code: the list."""
    from fakexport.report import render_rules
    from fakexport.rules import all_rules
    from fakexport.rules.explain import explain

    write_output(render_rules(all_rules()) if code is None else explain(code))
