"""`fakexport run`."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from fakexport.cli.operator_libraries import load_libraries
from fakexport.cli.options import Archive, BoundDevices, Debug, Inputs, Libraries, Method, Trust
from fakexport.cli.quiet import quiet
from fakexport.cli.streams import write_output

if TYPE_CHECKING:
    import torch

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
    method: Method = None,
    device_map: BoundDevices = None,
    trust: Trust = False,
    library: Libraries = None,
    debug: Debug = False,
) -> None:
    """Runs a program, or what it was compiled to, on the inputs of a file."""
    with quiet(is_debug=debug):
        from fakexport.deploy import read_inputs, write_outputs

        load_libraries(library)
        tensors = {} if inputs is None else read_inputs(inputs)
        outputs = _outputs(archive, checkpoint, tensors, method=method, device_map=device_map, trust=trust)
        if output is not None:
            write_outputs(output, outputs)
    for name, tensor in outputs.items():
        shape = ", ".join(map(str, tensor.shape))
        write_output(f"{name}  {str(tensor.dtype).removeprefix('torch.')}[{shape}]\n")


def _outputs(
    path: str,
    checkpoint: str | None,
    inputs: dict[str, torch.Tensor],
    *,
    method: str | None,
    device_map: str | None,
    trust: bool,
) -> dict[str, torch.Tensor]:
    from fakexport.archive import bind, load
    from fakexport.deploy import artifact_kind, open_artifact, run

    kind = artifact_kind(path)
    if kind != "program":
        if device_map is not None or method is not None:
            option = "--device-map" if method is None else "--method"
            raise typer.BadParameter(f"{option} is for programs; {path} is compiled")
        return open_artifact(path, kind, checkpoint=checkpoint, trust=trust)(inputs)
    program = load(path, method=method, trust=trust)
    if checkpoint is not None:
        program = bind(program, checkpoint, device_map=device_map)
    return run(program, inputs)
