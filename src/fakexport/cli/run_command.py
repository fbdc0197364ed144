"""`fakexport run`."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from fakexport.cli.operator_libraries import load_libraries
from fakexport.cli.options import Archive, BoundDevices, Debug, Inputs, Libraries, Trust
from fakexport.cli.quiet import quiet
from fakexport.cli.streams import write_output

__all__ = ["run_command"]


def run_command(
    archive: Archive,
    checkpoint: Annotated[
        str | None,
        typer.Argument(metavar="[CHECKPOINT]", show_default=False, help="The weights, if ARCHIVE has none."),
    ] = None,
    inputs: Inputs = None,
    output: Annotated[
        Path | None,
        typer.Option("--output", "-o", metavar="FILE", show_default=False, help="The outputs' .safetensors."),
    ] = None,
    device_map: BoundDevices = None,
    trust: Trust = False,
    library: Libraries = None,
    debug: Debug = False,
) -> None:
    """Runs a program on the inputs of a file, and writes or describes its outputs."""
    with quiet(is_debug=debug):
        from fakexport.archive import bind, load
        from fakexport.deploy import read_inputs, run, write_outputs

        load_libraries(library)
        program = load(archive, trust=trust)
        if checkpoint is not None:
            program = bind(program, checkpoint, device_map=device_map)
        outputs = run(program, {} if inputs is None else read_inputs(inputs))
        if output is not None:
            write_outputs(output, outputs)
    for name, tensor in outputs.items():
        shape = ", ".join(map(str, tensor.shape))
        write_output(f"{name}  {str(tensor.dtype).removeprefix('torch.')}[{shape}]\n")
