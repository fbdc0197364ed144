"""Commands that show a program in a different form: `fakexport diff`, `source` and `view`."""

from __future__ import annotations

import json
import shlex
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, Literal

import typer

from fakexport.cli import options
from fakexport.cli.isolated_work import UserCode
from fakexport.cli.streams import output_width, write_error_line, write_output

if TYPE_CHECKING:
    from fakexport.report import Document


@options.grouped_options
def diff_command(
    first: Annotated[str, typer.Argument(metavar="A.pt2", help="First archive.")],
    second: Annotated[str, typer.Argument(metavar="B.pt2", help="Second archive.")],
    method: options.Method = None,
    trust: options.Trust = False,
    format_: options.TextOrJson = "text",
    html: options.HtmlPage = None,
    *,
    code: UserCode,
) -> None:
    """Show how the second archive differs from the first: operators, devices, inputs, constants, weights.

    Exit code 0: same program and weights. 1: they differ. 2: bad usage or an invalid file. The origin and
    versions of an archive are shown but do not count as a difference.
    """
    width = output_width()

    def compared() -> tuple[bool, str, Document]:
        from fakexport.archive import diff_archives
        from fakexport.report import (
            archive_difference_document,
            json_text,
            render_archive_difference,
            to_dict,
        )

        found = diff_archives(first, second, method=method, trust=trust)
        is_text = format_ == "text"
        text = render_archive_difference(found, width=width) if is_text else json_text(to_dict(found))
        return found.is_same, text, archive_difference_document(found)

    is_same, text, document = code.run(compared, "compare archives", runs_code=trust)
    write_output(text)
    if html is not None:
        options.write_page(document, html)
    if not is_same:
        raise typer.Exit(1)


@options.grouped_options
def source_command(
    archive: options.Archive,
    output: Annotated[
        Path | None,
        typer.Option(
            "--output", "-o", metavar="FILE", help="Write the source to this .py file. Default: stdout."
        ),
    ] = None,
    method: options.Method = None,
    trust: options.Trust = False,
    *,
    code: UserCode,
) -> None:
    """Write a program as Python source to read, run and step through.

    Large constants are written to a .safetensors file next to --output. Without --output, they are omitted.
    """

    def written() -> tuple[str, int | None]:
        from fakexport.archive import load
        from fakexport.exporting.python_source import to_python, write_source

        program = load(archive, method=method, trust=trust)
        made = to_python(program) if output is None else write_source(program, output)
        return made.text, None if made.constants is None else len(made.constants)

    text, constant_bytes = code.run(written, "write source", runs_code=trust)
    if output is None:
        write_output(text)
        return
    lines, classes = text.count("\n"), text.count("\nclass ")
    write_error_line(f"{output}: {lines:,} lines, {classes:,} classes")
    if constant_bytes is not None:
        beside = output.with_suffix(".safetensors")
        write_error_line(f"{beside}: {constant_bytes:,} bytes of constants")


@options.grouped_options
def view_command(
    archive: options.Archive,
    output: Annotated[
        Path, typer.Option("--output", "-o", metavar="FILE", help="Write the graph to this .json file.")
    ],
    format_: Annotated[
        Literal["model-explorer"],
        typer.Option("--format", help="Viewer: Google's Model Explorer (package ai-edge-model-explorer)."),
    ] = "model-explorer",
    method: options.Method = None,
    trust: options.Trust = False,
    *,
    code: UserCode,
) -> None:
    """Write a program as a graph for Model Explorer, grouped by module.

    Also writes files that color the nodes: FILE.bytes.json, FILE.device.json and, if there are findings,
    FILE.diagnostics.json.
    """
    if output.suffix != ".json":
        raise typer.BadParameter(f"{output}: the file name must end in .json", param_hint="--output")

    def made() -> dict[Path, Any]:
        from fakexport.archive import load
        from fakexport.report.diagnose import diagnose_loaded
        from fakexport.report.viewers import model_explorer_files

        program = load(archive, method=method, trust=trust)
        written = model_explorer_files(program, method or "model", diagnose_loaded(program))
        files = {output: written.graph}
        return files | {output.with_suffix(f".{name}.json"): data for name, data in written.node_data.items()}

    files = code.run(made, "write graph", runs_code=trust)
    for path, data in files.items():
        options.write_file(path, json.dumps(data, separators=(",", ":")).encode())
    for path in files:
        write_error_line(f"{path}: {path.stat().st_size:,} bytes")
    overlays = ",".join(str(path) for path in list(files)[1:])
    write_error_line(
        f"open it with: {shlex.join(['model-explorer', str(output), '--node_data_paths', overlays])}"
    )
