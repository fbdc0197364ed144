"""`fakexport view`."""

from __future__ import annotations

import json
import shlex
from pathlib import Path
from typing import Annotated, Any, Literal

import typer

from fakexport.cli.isolated_work import Show, isolated
from fakexport.cli.options import Archive, Debug, Libraries, Method, Trust
from fakexport.cli.quiet import quiet
from fakexport.cli.streams import write_error_line


def view_command(
    archive: Archive,
    output: Annotated[
        Path,
        typer.Option("--output", "-o", metavar="FILE", help="File (.json) of the graph to write."),
    ],
    format_: Annotated[
        Literal["model-explorer"],
        typer.Option("--format", help="Viewer: model-explorer, Google's package ai-edge-model-explorer."),
    ] = "model-explorer",
    method: Method = None,
    trust: Trust = False,
    library: Libraries = None,
    debug: Debug = False,
) -> None:
    """Write a program as a graph that Model Explorer opens, folded by modules.

    Files next to it color the nodes: FILE.bytes.json, FILE.device.json and, where there are findings,
    FILE.diagnostics.json.
    """
    if output.suffix != ".json":
        raise typer.BadParameter(f"{output}: Model Explorer needs the ending .json", param_hint="--output")

    def made(_: Show | None) -> dict[Path, Any]:
        from fakexport.archive import load
        from fakexport.diagnose import diagnose_loaded
        from fakexport.viewers import model_explorer_files

        program = load(archive, method=method, trust=trust)
        written = model_explorer_files(program, method or "model", diagnose_loaded(program))
        files = {output: written.graph}
        return files | {output.with_suffix(f".{name}.json"): data for name, data in written.node_data.items()}

    with quiet(is_debug=debug):
        from fakexport.files import new_file

        files = isolated(made, library, runs_code=trust)
        for path, data in files.items():
            with new_file(path) as file:
                file.write(json.dumps(data, separators=(",", ":")).encode())
    for path in files:
        write_error_line(f"{path}: {path.stat().st_size:,} bytes")
    overlays = ",".join(str(path) for path in list(files)[1:])
    write_error_line(f"open it: {shlex.join(['model-explorer', str(output), '--node_data_paths', overlays])}")
