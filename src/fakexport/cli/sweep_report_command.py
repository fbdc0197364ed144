"""`fakexport sweep-report`."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from fakexport.cli.options import write_page
from fakexport.cli.streams import write_report


def sweep_report_command(
    runs: Annotated[
        list[Path],
        typer.Argument(
            metavar="RUN...", help="Files that `fakexport sweep` wrote; shown next to each other."
        ),
    ],
    output: Annotated[
        Path,
        typer.Option("--output", "-o", metavar="DIR", help="Folder for index.html and sweep.json."),
    ],
    zoo: Annotated[
        Path | None,
        typer.Option(
            "--zoo",
            metavar="ZOO",
            help="The zoo file: its checks that a run does not have count as not passed.",
        ),
    ] = None,
) -> None:
    """Write runs of a sweep as a page that loads nothing, and as JSON.

    The same files produce the same bytes. Exit code 0: written. 2: bad usage, or a file is refused.
    """
    from fakexport.files import new_file
    from fakexport.sweep import collect_results, read_run, read_zoo, results_document, results_text

    commands = None if zoo is None else [item.command for item in read_zoo(zoo).items]
    names = _names(runs)
    results = collect_results(
        [(name, read_run(path)) for name, path in zip(names, runs, strict=True)], commands
    )
    output.mkdir(parents=True, exist_ok=True)
    with new_file(output / "sweep.json") as file:
        file.write(results_text(results).encode())
    write_page(results_document(results), output / "index.html")
    for run, name in enumerate(results.names):
        found = ", ".join(f"{count:,} {status}" for status, count in results.counts(run).items())
        write_report(f"{name}: {len(results.checks):,} checks: {found or 'none'}\n")


def _names(runs: list[Path]) -> list[str]:
    """Return the names of the files, without the ending; the whole paths where two are called the same."""
    stems = [path.stem for path in runs]
    return stems if len(set(stems)) == len(stems) else [str(path) for path in runs]
