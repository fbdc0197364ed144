"""`fakexport run`."""

from __future__ import annotations

from contextlib import chdir
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from fakexport.cli import options
from fakexport.cli.isolated_work import UserCode
from fakexport.cli.streams import write_error_line, write_output
from fakexport.files import escaped

if TYPE_CHECKING:
    from fakexport.report import Spread

_WARMUP = 3


@options.grouped_options
def run_command(
    archive: options.Archive,
    checkpoint: options.OptionalCheckpoint = None,
    inputs: options.Inputs = None,
    adapter: options.RunAdapter = None,
    output: Annotated[
        Path | None,
        typer.Option("--output", "-o", metavar="FILE", help="Write the outputs to this .safetensors file."),
    ] = None,
    method: options.Method = None,
    compile_: Annotated[
        bool,
        typer.Option("--compile", help="Compile the program with `torch.compile` during the first call."),
    ] = False,
    warmup: Annotated[
        int | None,
        typer.Option(
            metavar="N",
            min=0,
            show_default=str(_WARMUP),
            help="Make N untimed calls before the timed calls of `--repeat`.",
        ),
    ] = None,
    repeat: Annotated[
        int,
        typer.Option(
            metavar="N", min=0, help="Time N calls after the first one; 0 calls the program once, untimed."
        ),
    ] = 0,
    microbatches: Annotated[
        int | None,
        typer.Option(
            metavar="N",
            min=1,
            help="For pipeline stages under torchrun: cut the inputs into N parts along dimension 0, so that "
            "the stages work at the same time.",
        ),
    ] = None,
    devices: options.BoundDevices = None,
    trust: options.Trust = False,
    *,
    code: UserCode,
) -> None:
    """Run a program, or its compiled form, on inputs from a file.

    With --repeat, latencies go to stderr; the outputs are still those of the first call. Under torchrun, each
    process runs the program of its rank or its pipeline stage, and rank 0 prints and writes the outputs.
    Without torchrun, the stages of a bundle run one after the other.
    """
    if warmup is not None and not repeat:
        raise typer.BadParameter("--warmup needs --repeat")

    def ran() -> tuple[float, Spread | None, dict[str, str]] | None:
        from fakexport.deploy import (
            adapter_inputs,
            artifact_kind,
            joined,
            open_program,
            rank_of_archive,
            read_inputs,
            run_timed,
            takes_adapter,
            write_outputs,
        )

        tensors = {} if inputs is None else read_inputs(inputs)
        is_program = artifact_kind(archive) == "program"
        for option, value in {"devices": devices, "method": method, "compile": compile_}.items():
            if value and not is_program:
                raise typer.BadParameter(f"--{option} applies to exported programs; {archive} is compiled")
        own = rank_of_archive(archive, method=method, trust=trust) if is_program else None
        stage = None if own is None else own.stage
        if microbatches is not None and stage is None:
            raise typer.BadParameter("--microbatches needs a bundle of stages, each in a process of torchrun")
        with chdir("."), joined(own):  # An operator may change the working directory.
            opened = open_program(
                archive,
                checkpoint,
                method=own.method if own else method,
                devices=devices,
                is_compiled=compile_,
                trust=trust,
                adapter=adapter,
            )
            if adapter is not None and takes_adapter(opened.signature):
                tensors |= adapter_inputs(adapter, opened.signature)
            if stage is not None:
                from fakexport.deploy import pipelined

                opened = pipelined(opened, microbatches or 1)
            timed = run_timed(
                opened, tensors, warmup=(_WARMUP if warmup is None else warmup) * bool(repeat), repeat=repeat
            )
        if own is not None and not own.is_first:
            return None
        if output is not None:
            write_outputs(output, timed.outputs)
        kinds = {
            name: f"{str(tensor.dtype).removeprefix('torch.')}[{', '.join(map(str, tensor.shape))}]"
            for name, tensor in timed.outputs.items()
        }
        return timed.first_call_s, timed.latency_s, kinds

    found = code.run(ran, "run", runs_code=trust)
    if found is None:
        return
    first_call_s, latency_s, kinds = found
    if latency_s is not None:
        from fakexport.report import duration_text, latency_text

        write_error_line(f"first call  {duration_text(first_call_s)}")
        write_error_line(f"latency     {latency_text(latency_s)}")
    for name, kind in kinds.items():
        write_output(f"{escaped(name)}  {kind}\n")
