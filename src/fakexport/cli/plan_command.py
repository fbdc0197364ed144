"""`fakexport plan`."""

from __future__ import annotations

import re
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Literal

import typer

from fakexport.cli import options
from fakexport.cli.isolated_work import Show, UserCode
from fakexport.cli.progress_display import progress_on_stderr
from fakexport.cli.project_file import ModelOptions, Profiles, one_target, options_for
from fakexport.cli.streams import output_width, write_error_line, write_found

if TYPE_CHECKING:
    from fakexport.report import PlanReport

_RANGE = re.compile(r"(\d{1,15})\.\.(\d{1,15})")


@dataclass(frozen=True, kw_only=True)
class PlanOptions:
    """Options of `fakexport plan` that are also arguments of `fakexport.plan`, with the same names."""

    target: Annotated[
        str | None,
        typer.Option(
            metavar="TOPOLOGY",
            help="Devices, such as `H100` or `8xH100`. Default: the archive's devices; for "
            "a model, the target in `[tool.fakexport]` if there is one, else `cpu`.",
        ),
    ] = None
    device_map: Annotated[
        str | None,
        typer.Option(
            metavar="MAP",
            help="Place the modules as for `check`; or `auto`, which also leaves room for the memory that a "
            "call needs in addition to the weights.",
        ),
    ] = None
    dtype: options.Dtype = None
    workload: Annotated[
        Literal["forward", "prefill", "decode", "train"],
        typer.Option(
            help="Plan this workload of an `hf:` model: `forward` without a cache; `prefill`, which returns "
            "a cache; or `decode`, which reads one token and a cache. `train` plans a training step of any "
            "model."
        ),
    ] = "forward"
    optimizer: Annotated[
        Literal["adamw", "adam", "sgd"] | None,
        typer.Option(
            help="With `--workload train`: use this optimizer with torch's defaults. Default: `adamw`."
        ),
    ] = None
    checkpointing: Annotated[
        bool,
        typer.Option(
            "--checkpointing", help="With `--workload train`: recompute activations in the backward pass."
        ),
    ] = False
    autocast: Annotated[
        str | None,
        typer.Option(
            metavar="DTYPE", help="With `--workload train`: use mixed precision, `bfloat16` or `float16`."
        ),
    ] = None
    batch: Annotated[
        str | None,
        typer.Option(
            metavar="N", help="Batch sizes: one number, several (1,8,32), or a range that doubles (1..64)."
        ),
    ] = None
    context: Annotated[
        str | None,
        typer.Option(
            metavar="N",
            help="Context lengths: how many tokens the model attends to, written as for `--batch`.",
        ),
    ] = None
    sizes: Annotated[
        list[str] | None,
        typer.Option(
            "--size",
            metavar="NAME.DIM=N",
            help="Set a dimension of an input, other than batch and context: `pixel_values.2=448`. "
            "Repeatable.",
        ),
    ] = None
    bounds: Annotated[
        list[str] | None,
        typer.Option(
            "--bound",
            metavar="SYMBOL=N",
            help="Set the upper bound of a data-dependent size: `u0=4096`. Repeatable.",
        ),
    ] = None
    maximum: Annotated[
        list[str] | None,
        typer.Option(
            "--max", metavar="batch|context", help="Find the largest batch or context that fits. Repeatable."
        ),
    ] = None
    smallest: Annotated[
        bool,
        typer.Option(
            "--smallest",
            help="For each NVIDIA and AMD GPU type, find the smallest number that the model fits on: 1, 2, "
            "4, 8 or 16.",
        ),
    ] = False
    eager: Annotated[
        bool,
        typer.Option(
            "--eager", help="Also measure eager mode, by running the model's own code on fake tensors."
        ),
    ] = False
    aoti: Annotated[
        bool, typer.Option("--aoti", help="Also plan the buffers that AOTInductor would allocate on the CPU.")
    ] = False
    by_module: Annotated[
        bool,
        typer.Option(
            "--by-module", help="Also show FLOPs and bytes per module; identical modules are merged."
        ),
    ] = False
    timeline: Annotated[
        Path | None,
        typer.Option(
            metavar="FILE",
            help="Also write the memory in use at each node: .json for `ui.perfetto.dev`, or .svg or .png.",
        ),
    ] = None
    method: options.Method = None
    parallel: Annotated[
        str | None,
        typer.Option(
            metavar="tp[=N][,ep[=N]][,pp=N]",
            help="Shard an `hf:` model as for `check`, and plan one rank. `tp` without a number shards over "
            "all devices of the target or, with `--smallest`, over each number of devices that is tried. "
            "`pp=N` plans each of N pipeline stages.",
        ),
    ] = None
    assume: options.Assume = None
    trust_remote_code: options.TrustRemoteCode = None


@options.grouped_options
def plan_command(
    command: typer.Context,
    subject: Annotated[
        str, typer.Argument(metavar="FILE|SOURCE", help="Archive (.pt2), or a model as for `check`.")
    ],
    *,
    call: PlanOptions,
    format_: options.TextOrJson = "text",
    html: options.HtmlPage = None,
    profiles: Profiles = None,
    code: UserCode,
) -> None:
    """Show how much memory a model needs on each device, at which sizes it fits, and where the peak is.

    The exported program is the basis: each tensor counts from the node that creates it to the last node that
    uses it. Loads no weights.

    Exit code 0: the model fits at every size, or the memory of the devices is unknown. 1: it does not or may
    not fit at some size, or does not export. 2: bad usage or environment.
    """
    if (timeline := call.timeline) is not None:
        options.check_chart(timeline, "--timeline", ".json", ".svg", ".png")
    if not options.is_archive_name(subject):
        call, code = _with_project(command, subject, call, code)
    has_modules = html is not None and call.workload != "train"
    has_modules = has_modules and not (call.eager or call.maximum or call.smallest)
    arguments = {name: value for name, value in vars(call).items() if value is not None}
    arguments |= {
        "batch": _sizes("--batch", call.batch),
        "context": _sizes("--context", call.context),
        "timeline": timeline is not None or html is not None,
        "by_module": call.by_module or has_modules,
    }

    def planned(on_progress: Show | None = None) -> PlanReport | str:
        from fakexport.planning import PlanError, plan

        try:
            return plan(subject, **arguments, on_progress=on_progress)
        except PlanError as error:
            return f"error: {error}"

    with progress_on_stderr(is_shown=not code.no_progress) as on_progress:
        report = code.run(planned, on_progress=on_progress)
    if isinstance(report, str):
        write_error_line(report)
        raise typer.Exit(1)
    from fakexport.report import render_plan

    # An HTML page always shows the modules; the printed report shows them only on request.
    printed = report if call.by_module else replace(report, modules=())
    write_found(printed, format_, partial(render_plan, width=output_width()))
    if timeline is not None:
        options.write_file(timeline, _timeline(report, timeline.suffix))
    if html is not None:
        from fakexport.report import plan_document

        options.write_page(plan_document(report), html)
    if any(point.fit in ("does not fit", "may not fit") for point in report.points):
        raise typer.Exit(1)


def _with_project(
    command: typer.Context, source: str, call: PlanOptions, code: UserCode
) -> tuple[PlanOptions, UserCode]:
    """Return the options for planning a model. Options that are not given come from `[tool.fakexport]`."""
    given = ModelOptions(
        device_map=call.device_map,
        dtype=call.dtype,
        assume=call.assume,
        trust_remote_code=call.trust_remote_code,
        libraries=code.libraries,
    )
    known = options_for(command, source, given)
    is_run = call.eager or call.workload == "train"  # Eager mode uses no `--assume`.
    call = replace(
        call,
        target=one_target(known, call.target, "plan"),
        device_map=known.device_map,
        dtype=known.dtype,
        assume=call.assume if is_run else known.assume,
        trust_remote_code=known.trust_remote_code,
    )
    return call, replace(code, libraries=known.libraries)


def _timeline(report: PlanReport, suffix: str) -> bytes:
    from fakexport.report import plan_trace, render_plan_chart

    if suffix == ".json":
        return plan_trace(report).encode()
    return render_plan_chart(report, format_="svg" if suffix == ".svg" else "png")


def _sizes(option: str, text: str | None) -> tuple[int, ...] | None:
    """Parse sizes: `1,8` is 1 and 8, and `1..64` is 1, 2, 4 and so on, up to 64."""
    if text is None:
        return None
    if match := _RANGE.fullmatch(text.strip()):
        size, last = int(match[1]), int(match[2])
        if not 0 < size <= last:
            raise typer.BadParameter(
                f"{option} {text!r}: write an ascending range that starts at 1 or more, such as 1..64"
            )
        sizes = []
        while size < last:
            sizes.append(size)
            size *= 2
        return (*sizes, last)
    parts = [part.strip().replace("_", "") for part in text.split(",")]
    if not all(part.isdecimal() and len(part) < 16 for part in parts):
        raise typer.BadParameter(f"{option} {text!r}: write a number, a list 1,8 or a range 1..64")
    return tuple(map(int, parts))
