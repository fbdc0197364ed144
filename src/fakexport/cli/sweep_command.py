"""`fakexport sweep` and `fakexport sweep-compare`."""

from __future__ import annotations

from contextlib import closing, nullcontext
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from fakexport._libraries import LIBRARIES
from fakexport.cli.options import NoProgress
from fakexport.cli.progress_display import lines_on_stderr
from fakexport.cli.streams import write_error_line, write_report

if TYPE_CHECKING:
    from fakexport.sweep import SweepItem, SweepRecord, Tally

_WORKER = "fakexport.cli.limited_command"
_COLD = "warning: checks take longer, each imports torch itself: {}"
_CHECK = ("fakexport.cli.check_command", "fakexport.checking")
_IMPORTS = {"": _CHECK, **{f"{known.prefix}:": (*_CHECK, *known.modules) for known in LIBRARIES}}
Old = Annotated[Path, typer.Argument(metavar="OLD", help="File that `fakexport sweep` wrote.")]
New = Annotated[Path, typer.Argument(metavar="NEW", help="A later one.")]


def sweep_command(
    zoo: Annotated[
        Path, typer.Argument(metavar="ZOO", help="Models and how to check them, as .yaml; see docs/sweep.md.")
    ],
    output: Annotated[
        Path,
        typer.Option(
            "--output", "-o", metavar="FILE", help="File for the findings: a line of JSON per check."
        ),
    ],
    resume: Annotated[
        bool, typer.Option("--resume", help="Go on with a file: do only the checks that are not in it.")
    ] = False,
    jobs: Annotated[
        int | None,
        typer.Option("--jobs", "-j", metavar="N", min=1, help="Number of checks at a time. Default: 1."),
    ] = None,
    ray: Annotated[
        str | None,
        typer.Option(
            "--ray",
            metavar="ADDRESS",
            help="Run the checks on a cluster of Ray: HOST:PORT, auto, or local for one on this machine.",
        ),
    ] = None,
    shard: Annotated[
        str | None,
        typer.Option(
            "--shard", metavar="I/N", help="Do the I-th of N parts: checks I, I+N, I+2N, ... of the file."
        ),
    ] = None,
    changed_since: Annotated[
        str | None,
        typer.Option(
            "--changed-since",
            metavar="REVISION",
            help="Do only the checks that files which changed since a commit can have changed.",
        ),
    ] = None,
    no_progress: NoProgress = False,
) -> None:
    """Check many models, each in a process of its own with limits of time and memory.

    Exit code 0: every check exports without errors. 1: one or more do not. 2: bad usage or environment.
    """
    from fakexport.sweep import RunFile, Sweep, changed_items, ray_cluster, ray_records, read_zoo, run_sweep

    if ray is not None and jobs is not None:
        raise typer.BadParameter("Ray decides how many run at a time; leave out --jobs", param_hint="--ray")
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
    """Compare two runs of a sweep: what got worse, and what got better.

    A check that the newer run does not have counts as worse. Exit code 0: nothing got worse. 1: something
    did. 2: bad usage or environment.
    """
    from fakexport.sweep import compare_runs, read_run

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
    """Return what did not export, each with its reason, below it how many did what."""
    from fakexport.sweep import STATUSES

    lines: list[str] = []
    for record in records:
        if record.status != "exports":
            lines += [f"{record.status}: {record.command}", f"    {record.reason}"]
    statuses = [record.status for record in records]
    counts = ", ".join(f"{statuses.count(each)} {each}" for each in STATUSES if each in statuses)
    checks = f"{len(records)} {'check' if len(records) == 1 else 'checks'}"
    checks += f": {counts}" if counts else ""
    return "\n".join([*lines, *([""] if lines else []), checks, ""])
