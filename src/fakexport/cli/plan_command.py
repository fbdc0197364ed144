"""`fakexport plan`."""

from __future__ import annotations

import importlib
import re
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Literal

import typer

from fakexport.cli.isolated_work import Show, isolated
from fakexport.cli.options import (
    Assume,
    Debug,
    DeviceMap,
    Dtype,
    HtmlPage,
    Libraries,
    Method,
    NoProgress,
    TextOrJson,
    write_page,
)
from fakexport.cli.progress_display import progress_on_stderr
from fakexport.cli.project_file import Profiles
from fakexport.cli.quiet import quiet
from fakexport.cli.streams import output_width, write_error_line, write_output

if TYPE_CHECKING:
    from fakexport.report import PlanReport

_RANGE = re.compile(r"(\d{1,15})\.\.(\d{1,15})")


def plan_command(
    subject: Annotated[
        str, typer.Argument(metavar="FILE|SOURCE", help="Archive (.pt2), or a model as for `check`.")
    ],
    target: Annotated[
        str | None,
        typer.Option(
            metavar="TOPOLOGY",
            help="Devices, such as H100 or 8xH100. Default: those of the archive; for a model, cpu.",
        ),
    ] = None,
    device_map: DeviceMap = None,
    dtype: Dtype = None,
    workload: Annotated[
        Literal["forward", "prefill", "decode", "train"],
        typer.Option(
            help="Call of an hf: model: forward without a cache, prefill, which returns one, or decode, "
            "which reads a token and a cache. Of any model: train."
        ),
    ] = "forward",
    optimizer: Annotated[
        Literal["adamw", "adam", "sgd"] | None,
        typer.Option(help="Optimizer of --workload train, with torch's defaults. Default: adamw."),
    ] = None,
    checkpointing: Annotated[
        bool,
        typer.Option(
            "--checkpointing",
            help="With --workload train: recompute activations in the backward pass.",
        ),
    ] = False,
    autocast: Annotated[
        str | None,
        typer.Option(
            metavar="DTYPE", help="With --workload train: mixed precision, with bfloat16 or float16."
        ),
    ] = None,
    batch: Annotated[
        str | None,
        typer.Option(metavar="N", help="Batch: a number, several (1,8,32), or a range in doublings (1..64)."),
    ] = None,
    context: Annotated[
        str | None,
        typer.Option(metavar="N", help="Tokens that the model attends to; several as for --batch."),
    ] = None,
    size: Annotated[
        list[str] | None,
        typer.Option(
            metavar="NAME.DIM=N", help="Other dimension of an input: pixel_values.2=448. Repeatable."
        ),
    ] = None,
    bound: Annotated[
        list[str] | None,
        typer.Option(
            metavar="SYMBOL=N",
            help="Greatest value of a size that only a run would tell: u0=4096. Repeatable.",
        ),
    ] = None,
    max_: Annotated[
        list[str] | None,
        typer.Option(
            "--max", metavar="batch|context", help="Find the largest batch or context that fits. Repeatable."
        ),
    ] = None,
    smallest: Annotated[
        bool,
        typer.Option("--smallest", help="Find how many devices of each NVIDIA or AMD GPU are enough."),
    ] = False,
    eager: Annotated[
        bool,
        typer.Option(
            "--eager",
            help="Also run the model's own code on fake tensors, for a column next to the program's.",
        ),
    ] = False,
    aoti: Annotated[
        bool,
        typer.Option(
            "--aoti",
            help="Also plan the buffers of the program that AOTInductor compiles for the CPU, for a column "
            "next to the program's.",
        ),
    ] = False,
    by_module: Annotated[
        bool,
        typer.Option("--by-module", help="Also show what each module computes and reads, equal ones as one."),
    ] = False,
    timeline: Annotated[
        Path | None,
        typer.Option(
            metavar="FILE",
            help="Also write what is held node by node: .json for ui.perfetto.dev, or .svg or .png.",
        ),
    ] = None,
    method: Method = None,
    parallel: Annotated[
        str | None,
        typer.Option(
            metavar="tp[=N][,ep[=N]]",
            help="Shard an hf: model by its tensor parallel plan, as for `check`, and show what a rank "
            "needs; tp: over all devices of the target, or as many as --smallest finds.",
        ),
    ] = None,
    assume: Assume = None,
    format_: TextOrJson = "text",
    html: HtmlPage = None,
    no_progress: NoProgress = False,
    profiles: Profiles = None,
    library: Libraries = None,
    debug: Debug = False,
) -> None:
    """Show how much memory a model needs on each device, at which sizes it fits, and where the peak is.

    The figures are read off the exported program: every tensor from the node that makes it to the node that
    uses it last. Loads no weights.

    Exit code 0: it fits at every size, or the memory of the devices is not known. 1: it does not, or may not,
    at some; or the model does not export. 2: bad usage or environment.
    """
    if timeline is not None:
        _check_timeline(timeline)

    def planned(on_progress: Show | None) -> PlanReport | str:
        from fakexport.planning import PlanError, plan

        try:
            return plan(
                subject,
                target=target,
                device_map=device_map,
                dtype=dtype,
                batch=_sizes("--batch", batch),
                context=_sizes("--context", context),
                workload=workload,
                optimizer=optimizer,
                checkpointing=checkpointing,
                autocast=autocast,
                sizes=size or (),
                bounds=bound or (),
                maximum=max_ or (),
                smallest=smallest,
                timeline=timeline is not None or html is not None,
                by_module=by_module
                or (html is not None and workload != "train" and not (eager or max_ or smallest)),
                eager=eager,
                aoti=aoti,
                method=method,
                parallel=parallel,
                assume=assume or (),
                on_progress=on_progress,
            )
        except PlanError as error:
            return f"error: {error}"

    with progress_on_stderr(is_shown=not no_progress) as on_progress, quiet(is_debug=debug):
        from fakexport.report import json_text, plan_to_dict, render_plan

        report = isolated(planned, library, on_progress=on_progress)
    if isinstance(report, str):
        write_error_line(report)
        raise typer.Exit(1)
    # The page has them in any case.
    printed = report if by_module else replace(report, modules=())
    write_output(
        json_text(plan_to_dict(printed)) if format_ == "json" else render_plan(printed, width=output_width())
    )
    if timeline is not None:
        from fakexport.files import new_file

        drawn = _timeline(report, timeline.suffix)
        with new_file(timeline) as file:
            file.write(drawn)
    if html is not None:
        from fakexport.report import plan_document

        write_page(plan_document(report), html)
    if any(point.fit in ("does not fit", "may not fit") for point in report.points):
        raise typer.Exit(1)


def _check_timeline(path: Path) -> None:
    """Refuse a bad format, or one that needs a missing package, before the model is exported."""
    if path.suffix not in (".json", ".svg", ".png"):
        raise typer.BadParameter(
            f"{path}: a timeline must be a .json, .svg or .png file", param_hint="--timeline"
        )
    if path.suffix != ".json":
        importlib.import_module("matplotlib")


def _timeline(report: PlanReport, suffix: str) -> bytes:
    from fakexport.report import plan_trace, render_plan_chart

    match suffix:
        case ".svg":
            return render_plan_chart(report, format_="svg")
        case ".png":
            return render_plan_chart(report, format_="png")
    return plan_trace(report).encode()


def _sizes(option: str, text: str | None) -> tuple[int, ...] | None:
    """Return `1,8` as 1 and 8, and `1..64` as 1, 2, 4 and so on, up to and with 64."""
    if text is None:
        return None
    if match := _RANGE.fullmatch(text.strip()):
        size, last = int(match[1]), int(match[2])
        sizes = []
        while 0 < size < last:
            sizes.append(size)
            size *= 2
        return (*sizes, last)
    parts = [part.strip().replace("_", "") for part in text.split(",")]
    if not all(part.isdecimal() and len(part) < 16 for part in parts):
        raise typer.BadParameter(f"{option} {text!r}: write a number, several such as 1,8, or a range 1..64")
    return tuple(map(int, parts))
