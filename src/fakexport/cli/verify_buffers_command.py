"""`fakexport verify-buffers`."""

from __future__ import annotations

from typing import TYPE_CHECKING, Annotated

import typer

from fakexport.cli.isolated_work import Show, isolated
from fakexport.cli.options import Debug, Libraries
from fakexport.cli.quiet import quiet
from fakexport.cli.streams import write_report

if TYPE_CHECKING:
    from fakexport.weights import BuffersReport


def verify_buffers_command(
    factory: Annotated[
        str,
        typer.Argument(metavar="FACTORY", help="Loads the model: file.py:FACTORY or package.module:FACTORY."),
    ],
    reference: Annotated[
        str | None,
        typer.Argument(
            metavar="[REFERENCE]",
            help="Builds the same model; a source, as for `check`. Default: its class, with its config or "
            "the arguments that it keeps.",
        ),
    ] = None,
    library: Libraries = None,
    debug: Debug = False,
) -> None:
    """Check that the tensors of a loaded model that no checkpoint contains have the right values.

    FACTORY is run with real tensors and returns the model, with its weights. Its non-persistent buffers and
    plain tensors are compared with what the constructor computes. Exit code 0: none is wrong. 1: some are
    (FE920). 2: bad usage.
    """
    with quiet(is_debug=debug):
        from fakexport.sources import resolve
        from fakexport.weights import loaded_model, verify_buffers

        def verified(_: Show | None) -> BuffersReport:
            # Before the model can leave the folder that it is relative to.
            right = None if reference is None else resolve(reference)
            return verify_buffers(loaded_model(factory), right)

        report = isolated(verified, library)
    write_report(f"{report}\n")
    if not report.is_right:
        raise typer.Exit(1)
