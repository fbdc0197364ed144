"""`fakexport diff`."""

from __future__ import annotations

from typing import TYPE_CHECKING, Annotated, Any

import typer

from fakexport.cli.isolated_work import Show, isolated
from fakexport.cli.options import (
    Debug,
    HtmlPage,
    Libraries,
    Method,
    TextOrJson,
    Trust,
    write_page,
)
from fakexport.cli.quiet import quiet
from fakexport.cli.streams import output_width, write_output

if TYPE_CHECKING:
    from fakexport.report import Document


def diff_command(
    first: Annotated[str, typer.Argument(metavar="A.pt2", help="First archive.")],
    second: Annotated[str, typer.Argument(metavar="B.pt2", help="Second archive.")],
    method: Method = None,
    trust: Trust = False,
    format_: TextOrJson = "text",
    html: HtmlPage = None,
    library: Libraries = None,
    debug: Debug = False,
) -> None:
    """Show how the second archive differs from the first: operators, devices, inputs, constants, weights.

    Exit code 0: same program and weights. 1: they differ. 2: bad usage, or a file is refused. The origin and
    versions of an archive are shown but do not count as a difference.
    """
    width = output_width()

    def compared(_: Show | None) -> tuple[bool, str, dict[str, Any], Document]:
        from fakexport.archive import diff_archives
        from fakexport.report import (
            archive_difference_document,
            archive_difference_to_dict,
            render_archive_difference,
        )

        found = diff_archives(first, second, method=method, trust=trust)
        text = render_archive_difference(found, width=width)
        return found.is_same, text, archive_difference_to_dict(found), archive_difference_document(found)

    with quiet(is_debug=debug):
        from fakexport.report import json_text

        is_same, text, data, document = isolated(compared, library, runs_code=trust)
    write_output(text if format_ == "text" else json_text(data))
    if html is not None:
        write_page(document, html)
    if not is_same:
        raise typer.Exit(1)
