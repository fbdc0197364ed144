"""`fakexport verify-weights`."""

from __future__ import annotations

from typing import TYPE_CHECKING, Annotated

import typer

from fakexport.cli.isolated_work import Show, isolated
from fakexport.cli.options import BoundAdapters, Debug, Dtype, Libraries, TextOrJson, Trust
from fakexport.cli.project_file import Profiles
from fakexport.cli.quiet import quiet
from fakexport.cli.streams import write_output

if TYPE_CHECKING:
    from fakexport.weights import WeightsReport


def verify_weights_command(
    subject: Annotated[
        str,
        typer.Argument(metavar="SOURCE|ARCHIVE", help="Model, as for `check`, or a .pt2 archive."),
    ],
    checkpoint: Annotated[
        str | None,
        typer.Argument(
            metavar="[CHECKPOINT]",
            help=(
                "Checkpoint: a .safetensors, .pt or .bin file, an index, a folder that contains one, or "
                "hf:org/name. Without it, verify the weights in ARCHIVE."
            ),
        ),
    ] = None,
    adapter: BoundAdapters = None,
    target: Annotated[
        str, typer.Option(metavar="TOPOLOGY", help="Devices that the constructor may name, such as 8xH100.")
    ] = "cpu",
    dtype: Dtype = None,
    trust: Trust = False,
    format_: TextOrJson = "text",
    profiles: Profiles = None,
    library: Libraries = None,
    debug: Debug = False,
) -> None:
    """Check that a checkpoint has every weight of a model or an archive. Only headers are read.

    Without a checkpoint, the weights inside a bound archive are read and verified. Exit code 0: complete and
    bindable. 1: not bindable; names, shapes, dtypes and likely causes are listed. 2: bad usage, or a file is
    refused.
    """
    with quiet(is_debug=debug):
        from fakexport.archive import is_archive, verify_archived_weights, verify_weights
        from fakexport.sources import parse_dtype
        from fakexport.weights import open_checkpoint

        def verified(_: Show | None) -> WeightsReport:
            if checkpoint is not None:
                wanted = None if dtype is None else parse_dtype(dtype)
                opened = open_checkpoint(checkpoint, adapter=adapter or ())
                return verify_weights(subject, opened, target=target, dtype=wanted, trust=trust)
            if is_archive(subject):
                return verify_archived_weights(subject, trust=trust)
            raise typer.BadParameter("a model has no weights of its own: pass a checkpoint to verify")

        report = isolated(verified, library, runs_code=trust or not is_archive(subject))
    from fakexport.report import json_text, render_weights, weights_to_dict

    write_output(json_text(weights_to_dict(report)) if format_ == "json" else render_weights(report))
    if not report.is_bindable:
        raise typer.Exit(1)
