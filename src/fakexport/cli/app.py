"""The list of commands, and the options that come before the command."""

from __future__ import annotations

from typing import Annotated

import typer

from fakexport._version import __version__
from fakexport.cli.archive_commands import bind_command, bundle_command, retarget_command
from fakexport.cli.bench_command import bench_command
from fakexport.cli.check_command import check_command
from fakexport.cli.color import ColorChoice, choose_color
from fakexport.cli.compare_command import compare_command
from fakexport.cli.compile_command import compile_command
from fakexport.cli.emulate_command import emulate_command
from fakexport.cli.export_command import export_command
from fakexport.cli.generate_command import generate_command
from fakexport.cli.inspect_command import inspect_command
from fakexport.cli.plan_command import plan_command
from fakexport.cli.reference_commands import devices_command, explain_command
from fakexport.cli.run_command import run_command
from fakexport.cli.streams import write_error_line, write_output
from fakexport.cli.sweep_commands import sweep_command, sweep_compare_command, sweep_report_command
from fakexport.cli.verify_commands import verify_buffers_command, verify_weights_command
from fakexport.cli.viewing_commands import diff_command, source_command, view_command
from fakexport.models import installed_version

# Importing rich, or the modules that commands import when they run, would take longer than `--help` itself.
app = typer.Typer(add_completion=False, rich_markup_mode=None, pretty_exceptions_enable=False)


def _show_version(is_asked: bool) -> None:
    if is_asked:
        import platform

        python = platform.python_version()
        torch = installed_version("torch") or "not installed"
        write_output(f"fakexport {__version__} (torch {torch}, Python {python})\n")
        raise typer.Exit


@app.callback(invoke_without_command=True)
def _fakexport(
    context: typer.Context,
    version: Annotated[
        bool,
        typer.Option("--version", callback=_show_version, is_eager=True, help="Show the version and exit."),
    ] = False,
    color: Annotated[
        ColorChoice,
        typer.Option(help="Color reports: auto (on a terminal), always or never. Put it before the command."),
    ] = "auto",
) -> None:
    """Check, on a machine without a GPU, that PyTorch models export for the GPUs they will run on.

    Exit code 0: no errors (warnings allowed). 1: an export failed or errors were reported. 2: bad usage or
    environment.
    """
    choose_color(color)
    if context.invoked_subcommand is None:
        write_error_line(context.get_help())
        raise typer.Exit(2)


app.command("check", short_help="Check whether a model exports for each target.")(check_command)
app.command(
    "lock",
    short_help="Record the exported program of each model.",
    help="Run `fakexport check --update-lock`: check a model and record its program in fakexport.lock.",
    context_settings={"default_map": {"update_lock": True}},
)(check_command)
app.command("sweep", short_help="Check many models.")(sweep_command)
app.command("sweep-compare", short_help="Compare two sweep runs.")(sweep_compare_command)
app.command("sweep-report", short_help="Write an HTML report of sweep runs.")(sweep_report_command)
app.command("export", short_help="Export a model for one target, without weights.")(export_command)
app.command("retarget", short_help="Move an exported program to other devices.")(retarget_command)
app.command("bind", short_help="Bind a checkpoint's weights to a program.")(bind_command)
app.command("bundle", short_help="Store several programs in one archive.")(bundle_command)
app.command("run", short_help="Run a program on inputs from a file.")(run_command)
app.command("generate", short_help="Generate tokens with an exported language model.")(generate_command)
app.command("compile", short_help="Compile a program for a runtime.")(compile_command)
app.command("bench", short_help="Benchmark deployment formats on the CPU.")(bench_command)
app.command("compare", short_help="Compare a program with the eager model.")(compare_command)
app.command("source", short_help="Write a program as Python source.")(source_command)
app.command("view", short_help="Write a program as a graph for a viewer.")(view_command)
app.command("inspect", short_help="Describe an archive or a model.")(inspect_command)
app.command("plan", short_help="Show the memory a model needs, and whether it fits.")(plan_command)
app.command("diff", short_help="Show how two archives differ.")(diff_command)
app.command("verify-weights", short_help="Check that a checkpoint has every weight.")(verify_weights_command)
app.command("verify-buffers", short_help="Check the tensors that checkpoints do not contain.")(
    verify_buffers_command
)
app.command(
    "emulate",
    short_help="Run a script on emulated devices.",
    # All arguments after TOPOLOGY belong to the script.
    context_settings={"allow_interspersed_args": False},
)(emulate_command)
app.command("explain", short_help="Explain a diagnostic and how to fix it.")(explain_command)
app.command("devices", short_help="List device profiles.")(devices_command)
