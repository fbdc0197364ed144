"""`fakexport compare`."""

from __future__ import annotations

from typing import TYPE_CHECKING, Annotated

import typer

from fakexport.cli.isolated_work import Show, isolated
from fakexport.cli.options import (
    Archive,
    BoundDevices,
    Debug,
    Dtype,
    Inputs,
    Libraries,
    Method,
    Source,
    TextOrJson,
    Trust,
    UseCache,
)
from fakexport.cli.quiet import quiet
from fakexport.cli.streams import output_width, write_output

if TYPE_CHECKING:
    from fakexport.report import Comparison


def compare_command(
    source: Source,
    archive: Archive,
    checkpoint: Annotated[
        str | None,
        typer.Argument(metavar="[CHECKPOINT]", help="Weights for both the model and the program."),
    ] = None,
    inputs: Inputs = None,
    method: Method = None,
    devices: BoundDevices = None,
    dtype: Dtype = None,
    use_cache: UseCache = None,
    format_: TextOrJson = "text",
    trust: Trust = False,
    library: Libraries = None,
    debug: Debug = False,
) -> None:
    """Compare an exported program's outputs with eager mode, and find the first operation that differs.

    Without CHECKPOINT, the weights come from ARCHIVE; if it has none, from the model constructed under seed
    0. Exit code 0: equal, bit for bit or up to rounding. 1: the outputs diverge. 2: bad usage or environment.
    """

    def compared(_: Show | None) -> Comparison:
        from fakexport.archive import load
        from fakexport.comparison import compare_source
        from fakexport.deploy import read_inputs

        return compare_source(
            source,
            load(archive, method=method, trust=trust),
            checkpoint=checkpoint,
            inputs=None if inputs is None else read_inputs(inputs),
            devices=devices,
            dtype=dtype,
            use_cache=bool(use_cache),
        )

    with quiet(is_debug=debug):
        from fakexport.report import comparison_to_dict, json_text, render_comparison

        comparison = isolated(compared, library)
    is_text = format_ == "text"
    found = comparison_to_dict(comparison)
    write_output(render_comparison(comparison, width=output_width()) if is_text else json_text(found))
    if not comparison.is_equal:
        raise typer.Exit(1)
