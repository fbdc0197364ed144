"""Commands for many models: `fakexport sweep`, `sweep-compare` and `sweep-report`."""

from __future__ import annotations

from contextlib import closing, nullcontext
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from fakexport.cli.options import NoProgress, write_file, write_page
from fakexport.cli.progress_display import lines_on_stderr
from fakexport.cli.streams import write_error_line, write_report
from fakexport.models import LIBRARIES

if TYPE_CHECKING:
    from fakexport.checking.sweep import SweepItem, SweepRecord, Tally

_WORKER = "fakexport.cli.limited_command"
_COLD = "warning: checks are slower because each of them imports torch: {}"
_CHECK = ("fakexport.cli.check_command", "fakexport.checking")
_IMPORTS = {"": _CHECK, **{f"{known.prefix}:": (*_CHECK, *known.modules) for known in LIBRARIES}}
Old = Annotated[Path, typer.Argument(metavar="OLD", help="Output file of an earlier `fakexport sweep`.")]
New = Annotated[Path, typer.Argument(metavar="NEW", help="Output file of a later `fakexport sweep`.")]


def sweep_command(
    zoo: Annotated[
        Path,
        typer.Argument(
            metavar="ZOO",
            help="YAML file with the models and the options to check them with; see `docs/sweep.md`.",
        ),
    ],
    output: Annotated[
        Path,
        typer.Option("--output", "-o", metavar="FILE", help="Write one line of JSON per check to this file."),
    ],
    resume: Annotated[
        bool,
        typer.Option(
            "--resume", help="Continue a run: skip the checks that the output file already contains."
        ),
    ] = False,
    jobs: Annotated[
        int | None,
        typer.Option("--jobs", "-j", metavar="N", min=1, show_default="1", help="Run N checks at a time."),
    ] = None,
    ray: Annotated[
        str | None,
        typer.Option(
            metavar="ADDRESS",
            help="Run the checks on a Ray cluster: `HOST:PORT`, `auto`, or `local` to start one on this "
            "machine. Not with `--jobs`.",
        ),
    ] = None,
    shard: Annotated[
        str | None,
        typer.Option(metavar="I/N", help="Run the I-th of N parts: checks I, I+N, I+2N and so on."),
    ] = None,
    changed_since: Annotated[
        str | None,
        typer.Option(
            metavar="REVISION",
            help="Run only the checks that are affected by files changed since this commit.",
        ),
    ] = None,
    no_progress: NoProgress = False,
) -> None:
    """Check many models, each in its own process with limits on time and memory.

    Exit code 0: all models export without errors. 1: at least one does not. 2: bad usage or environment.
    """
    from fakexport.checking.sweep import (
        RunFile,
        Sweep,
        changed_items,
        ray_cluster,
        ray_records,
        read_zoo,
        run_sweep,
    )

    if ray is not None and jobs is not None:
        raise typer.BadParameter(
            "Ray decides how many checks run at a time: remove --jobs", param_hint="--ray"
        )
    found = read_zoo(zoo)
    asked = found.items if changed_since is None else changed_items(found, changed_since)
    items = _part(asked, shard)
    sweep = Sweep(items, found.limits, found.path.resolve().parent, _WORKER, jobs or 1, _IMPORTS)
    with (
        nullcontext() if ray is None else ray_cluster(ray),
        closing(RunFile(output, resume=resume)) as file,
        lines_on_stderr(is_shown=not no_progress) as show,
    ):
        run_sweep(
            sweep,
            file,
            None if show is None else lambda tally: show(_progress(tally)),
            lambda reason: write_error_line(_COLD.format(reason)),
            records_of=None if ray is None else ray_records,
        )
        records = [file.records[item.command] for item in items]
    write_report(_summary(records))
    if any(record.status != "exports" for record in records):
        raise typer.Exit(1)


def sweep_compare_command(old: Old, new: New) -> None:
    """Compare two sweep runs, and list the checks that got worse or better.

    A check that is missing from the newer run counts as worse. Exit code 0: no check got worse. 1: at least
    one did. 2: bad usage or environment.
    """
    from fakexport.checking.sweep import compare_runs, read_run

    found = compare_runs(read_run(old), read_run(new))
    lines = []
    for title, changes in (
        ("worse", found.worse),
        ("missing", found.missing),
        ("better", found.better),
        ("new", found.new),
    ):
        for change in changes:
            lines.append(f"{title}: {change.command}")
            lines += [f"    before: {_outcome(change.before)}"] if change.before else []
            lines += [f"    now:    {_outcome(change.after)}"] if change.after else []
    counts = (
        f"{len(found.worse)} worse, {len(found.missing)} missing, {len(found.better)} better, "
        f"{len(found.new)} new, {found.same} the same"
    )
    write_report("\n".join([*lines, *([""] if lines else []), counts, ""]))
    if found.is_worse:
        raise typer.Exit(1)


def _part(items: tuple[SweepItem, ...], shard: str | None) -> tuple[SweepItem, ...]:
    if shard is None:
        return items
    number, slash, count = shard.partition("/")
    is_short = number.isdecimal() and count.isdecimal() and len(shard) < 20
    if not (slash and is_short and 1 <= int(number) <= int(count)):
        raise typer.BadParameter(f"{shard}: expected I/N with 1 <= I <= N, such as 1/4", param_hint="--shard")
    return items[int(number) - 1 :: int(count)]


def _progress(tally: Tally) -> str:
    bad = f", {tally.bad} not exported" if tally.bad else ""
    left = f", about {max(1, round(tally.seconds_left / 60))} min left" if tally.done < tally.total else ""
    return f"{tally.done} of {tally.total} checks{bad}{left}"


def _outcome(record: SweepRecord) -> str:
    return f"{record.status}: {record.reason}" if record.reason else record.status


def _summary(records: list[SweepRecord]) -> str:
    """Return checks that did not export, with the reason; runtimes' answers; and counts per status."""
    from fakexport.checking.sweep import STATUSES, answers_of
    from fakexport.report import RESULT_TEXTS, layout

    lines: list[str] = []
    for record in records:
        if record.status != "exports":
            lines += [f"{record.status}: {record.command}", f"    {record.reason}"]
    answers = {record.command: answers_of(record) for record in records}
    if names := list(dict.fromkeys(name for found in answers.values() for name in found)):
        rows = [
            [*(RESULT_TEXTS[found[name]] if name in found else "" for name in names), command]
            for command, found in answers.items()
        ]
        lines += [*([""] if lines else []), *layout([[*names, "check"], *rows])]
    statuses = [record.status for record in records]
    counts = ", ".join(f"{statuses.count(each)} {each}" for each in STATUSES if each in statuses)
    checks = f"{len(records)} {'check' if len(records) == 1 else 'checks'}"
    checks += f": {counts}" if counts else ""
    return "\n".join([*lines, *([""] if lines else []), checks, ""])


def sweep_report_command(
    runs: Annotated[
        list[Path],
        typer.Argument(metavar="RUN...", help="Output files of `fakexport sweep`, shown side by side."),
    ],
    output: Annotated[
        Path,
        typer.Option(
            "--output", "-o", metavar="DIR", help="Write `index.html` and `sweep.json` to this folder."
        ),
    ],
    zoo: Annotated[
        Path | None,
        typer.Option(
            metavar="ZOO",
            help="Count every check of this zoo file. A check that is missing from a run counts as not "
            "passed.",
        ),
    ] = None,
) -> None:
    """Write an HTML report and a JSON file of one or more sweep runs.

    The same input files produce the same bytes. Exit code 0: written. 2: bad usage or an invalid file.
    """
    from fakexport.checking.sweep import collect_results, read_run, read_zoo, results_document, results_text

    commands = None if zoo is None else [item.command for item in read_zoo(zoo).items]
    names = _names(runs)
    results = collect_results(
        [(name, read_run(path)) for name, path in zip(names, runs, strict=True)], commands
    )
    output.mkdir(parents=True, exist_ok=True)
    write_file(output / "sweep.json", results_text(results).encode())
    write_page(results_document(results), output / "index.html")
    for run in results.runs:
        found = ", ".join(f"{count:,} {status}" for status, count in run.counts.items() if count)
        write_report(f"{run.name}: {results.total:,} checks: {found}\n")


def _names(runs: list[Path]) -> list[str]:
    """Return the file names without extensions, or all full paths if two names are equal."""
    stems = [path.stem for path in runs]
    return stems if len(set(stems)) == len(stems) else [str(path) for path in runs]
