"""`fakexport compare`."""

from __future__ import annotations

from functools import partial
from typing import TYPE_CHECKING, Annotated

import typer

from fakexport.cli import options
from fakexport.cli.isolated_work import UserCode
from fakexport.cli.streams import output_width, write_found

if TYPE_CHECKING:
    from fakexport.report import Comparison


@options.grouped_options
def compare_command(
    source: options.Source,
    archive: options.Archive,
    checkpoint: Annotated[
        str | None, typer.Argument(metavar="CHECKPOINT", help="Weights for both the model and the program.")
    ] = None,
    inputs: options.Inputs = None,
    method: options.Method = None,
    devices: options.BoundDevices = None,
    dtype: options.Dtype = None,
    use_cache: options.UseCache = None,
    trust_remote_code: options.TrustRemoteCode = None,
    format_: options.TextOrJson = "text",
    trust: options.Trust = False,
    *,
    code: UserCode,
) -> None:
    """Compare an exported program with the eager model, and find the first module and node that differ.

    Without CHECKPOINT, the weights come from ARCHIVE. If ARCHIVE has none, the model is initialized with
    random seed 0. Exit code 0: equal, bit for bit or up to rounding. 1: the outputs diverge. 2: bad usage or
    environment.
    """

    def compared() -> Comparison:
        from fakexport.archive import load
        from fakexport.deploy import read_inputs
        from fakexport.deploy.comparison import compare_source

        return compare_source(
            source,
            load(archive, method=method, trust=trust),
            checkpoint=checkpoint,
            inputs=None if inputs is None else read_inputs(inputs),
            devices=devices,
            dtype=dtype,
            use_cache=bool(use_cache),
            trust_remote_code=bool(trust_remote_code),
        )

    comparison = code.run(compared, "compare with eager mode")
    from fakexport.report import render_comparison

    write_found(comparison, format_, partial(render_comparison, width=output_width()))
    if not comparison.is_equal:
        raise typer.Exit(1)
