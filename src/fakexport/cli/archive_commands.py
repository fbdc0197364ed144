"""Commands that write an archive: `fakexport bind`, `bundle` and `retarget`."""

from __future__ import annotations

from typing import TYPE_CHECKING, Annotated

import typer

from fakexport.cli import options
from fakexport.cli.isolated_work import UserCode
from fakexport.cli.project_file import Profiles
from fakexport.cli.streams import write_failed, write_note, write_output

if TYPE_CHECKING:
    from torch.export import ExportedProgram

    from fakexport.rules.diagnostics import Diagnostic


@options.grouped_options
def bind_command(
    archive: options.Archive,
    checkpoint: options.Checkpoint,
    output: options.OutputArchive,
    link: Annotated[
        bool, typer.Option("--link", help="Reference the checkpoint's files instead of copying the weights.")
    ] = False,
    adapter: options.BoundAdapters = None,
    rank: Annotated[
        int | None,
        typer.Option(
            metavar="R",
            help="Bind only the program of rank R, counted from 0, to its part of the checkpoint.",
        ),
    ] = None,
    method: Annotated[
        str | None,
        typer.Option(metavar="NAME", help="Bind only this program of a bundle, such as a pipeline stage."),
    ] = None,
    devices: options.BoundDevices = None,
    trust: options.Trust = False,
    *,
    code: UserCode,
) -> None:
    """Bind the weights of a checkpoint to an archive, all of them or none.

    `torch.export.load` opens the result without fakexport, except with --link. Exit code 0: written. 2: the
    weights do not fit or a file is invalid; `fakexport verify-weights` lists the problems.
    """

    if rank is not None and method is not None:
        raise typer.BadParameter("pass either --rank or --method")

    def bound() -> tuple[int, str]:
        from fakexport.archive import Bundle, bind, load, load_bundle, save
        from fakexport.archive.weights import open_checkpoint
        from fakexport.deploy import rank_of_archive

        opened = open_checkpoint(checkpoint, adapter=adapter or ())
        program: Bundle | ExportedProgram
        if rank is None and method is None:
            program = load_bundle(archive, trust=trust)
        else:
            own = rank_of_archive(archive, rank, method, trust=trust)
            if isinstance(own.method, tuple):
                program = load_bundle(archive, methods=own.method, trust=trust)
            else:
                program = load(archive, method=own.method, trust=trust)
        made = bind(program, opened, devices=devices)
        tensors = save(made, output, link=opened if link else None).tensors
        locations = {tensor.location for tensor in tensors if tensor.location}
        where = ""
        if link:
            linked = sum(place.length for place in locations if place.is_link)
            inside = sum(place.length for place in locations if not place.is_link)
            where = f"; {linked:,} bytes stay in the checkpoint, {inside:,} bytes are in the archive"
        return sum(1 + len(tensor.aliases) for tensor in tensors), where

    count, where = code.run(bound, "bind weights", runs_code=trust)
    write_output(f"{output}: {output.stat().st_size:,} bytes, {count} weights bound{where}\n")


@options.grouped_options
def bundle_command(
    programs: Annotated[
        list[str],
        typer.Argument(
            metavar="METHOD=ARCHIVE...", help="Programs to store, such as `encode=a.pt2` `decode=b.pt2`."
        ),
    ],
    output: options.OutputArchive,
    prefix: Annotated[
        list[str] | None,
        typer.Option(
            metavar="METHOD=OUT[:IN]",
            help="To find a weight of METHOD in the checkpoint, replace the prefix IN of its name with OUT. "
            "Repeatable. Default: the prefixes in the bundle that the program was loaded from.",
        ),
    ] = None,
    trust: options.Trust = False,
    *,
    code: UserCode,
) -> None:
    """Store several programs in one archive. Weights that they share are stored once.

    Programs share a weight if it has the same name in the checkpoint; see --prefix. Exit code 0: written. 2:
    the programs cannot be stored together, or a file is invalid.
    """
    paths = _pairs(programs, "METHOD=ARCHIVE")
    prefixes = {
        method: (outside, inside)
        for method, text in _pairs(prefix or [], "METHOD=OUT[:IN]").items()
        for outside, _, inside in [text.partition(":")]
    }

    def saved() -> int:
        from fakexport.archive import merge

        programs = {method: (path, None) for method, path in paths.items()}
        if (merged := merge(programs, output, prefixes=prefixes, trust=trust)) is not None:
            return len(merged.shared)
        from fakexport.archive import load, save_bundle

        loaded = {method: load(path, trust=trust) for method, path in paths.items()}
        return len(save_bundle(loaded, output, prefixes=prefixes).shared)

    shared = code.run(saved, "store programs", runs_code=trust)
    size = output.stat().st_size
    write_output(
        f"{output}: {size:,} bytes, methods {', '.join(paths)}; {shared} shared weights and buffers\n"
    )


def _pairs(texts: list[str], form: str) -> dict[str, str]:
    found: dict[str, str] = {}
    for text in texts:
        name, equals, value = text.partition("=")
        if not (name and equals and value):
            raise typer.BadParameter(f"expected {form}, got {text!r}")
        if name in found:
            raise typer.BadParameter(f"method {name} is given twice")
        found[name] = value
    return found


@options.grouped_options
def retarget_command(
    archive: options.Archive,
    output: options.OutputArchive,
    to: Annotated[
        str,
        typer.Option(
            metavar="FROM=TO",
            help="Map devices to devices, `cpu=cuda:0`; or map modules to devices, "
            "`fc1=cuda:0,fc2=cuda:1`; or name one device for the whole program.",
        ),
    ],
    target: Annotated[
        str | None,
        typer.Option(
            metavar="TOPOLOGY",
            help="Devices to move to, such as `H100`. Default: a common model of each kind of device.",
        ),
    ] = None,
    method: options.Method = None,
    trust: options.Trust = False,
    profiles: Profiles = None,
    *,
    code: UserCode,
) -> None:
    """Move an exported program to other devices, and verify with fake tensors that it runs there.

    Exit code 0: written. 1: operators of the program fail on the new devices; nothing is written, and the
    diagnostics name the operators and their lines. 2: an invalid map or file.
    """

    def written() -> tuple[tuple[Diagnostic, ...], tuple[str, ...], tuple[str, ...]]:
        from fakexport.archive import load, save
        from fakexport.exporting.program import RetargetError, retargeted

        program = load(archive, method=method, trust=trust)
        try:
            made = retargeted(program, to, topology=target)
        except RetargetError as error:
            return error.diagnostics, (), ()
        save(made.program, output)
        return (), (*made.unproven, *made.notes), tuple(made.devices)

    failed, notes, devices = code.run(written, "retarget", runs_code=trust)
    if failed:
        write_failed(failed)
    for sentence in notes:
        write_note(sentence)
    write_output(f"{output}: {output.stat().st_size:,} bytes, on {', '.join(devices)}\n")
