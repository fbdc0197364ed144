"""`fakexport diff`."""

from __future__ import annotations

from typing import Annotated

import typer

from fakexport.cli.options import (
    Debug,
    HtmlPage,
    Libraries,
    Method,
    TextOrJson,
    Trust,
    load_libraries,
    write_page,
)
from fakexport.cli.quiet import quiet
from fakexport.cli.streams import output_width, write_output


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
    with quiet(is_debug=debug):
        from fakexport.archive import diff_archives
        from fakexport.report import archive_difference_to_dict, json_text, render_archive_difference

        load_libraries(library)
        found = diff_archives(first, second, method=method, trust=trust)
        is_text = format_ == "text"
        data = archive_difference_to_dict(found)
        text = render_archive_difference(found, width=output_width()) if is_text else json_text(data)
    write_output(text)
    if html is not None:
        from fakexport.report import archive_difference_document

        write_page(archive_difference_document(found), html)
    if not found.is_same:
        raise typer.Exit(1)
