"""`fakexport verify-weights`."""

from __future__ import annotations

from typing import Annotated, Literal

import typer

from fakexport.cli.options import Checkpoint, Debug, Dtype, Source
from fakexport.cli.quiet import quiet
from fakexport.cli.streams import write_output

__all__ = ["verify_weights_command"]


def verify_weights_command(
    source: Source,
    checkpoint: Checkpoint,
    target: Annotated[
        str, typer.Option(metavar="TOPOLOGY", help="Devices that the constructor may name, such as 8xH100.")
    ] = "cpu",
    dtype: Dtype = None,
    format_: Annotated[
        Literal["text", "json"], typer.Option("--format", help="Text for people, JSON for programs.")
    ] = "text",
    debug: Debug = False,
) -> None:
    """Does a checkpoint have every weight of the model? Only headers are read.

    Exit code 0: it can be bound. 1: it cannot; names, shapes, dtypes and the likely causes are listed.
    2: bad usage, or a file that is refused.
    """
    with quiet(is_debug=debug):
        from fakexport.weights import dtype_named, verify_weights

        wanted = None if dtype is None else dtype_named(dtype)
        report = verify_weights(source, checkpoint, topology=target, dtype=wanted)
    from fakexport.report import render_weights, render_weights_json

    write_output(render_weights_json(report) if format_ == "json" else render_weights(report))
    if not report.is_bindable:
        raise typer.Exit(1)
