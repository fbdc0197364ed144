"""Commands that verify a checkpoint: `fakexport verify-weights` and `verify-buffers`."""

from __future__ import annotations

from typing import TYPE_CHECKING, Annotated

import typer

from fakexport.cli import options
from fakexport.cli.isolated_work import UserCode
from fakexport.cli.project_file import Profiles
from fakexport.cli.streams import write_found, write_report

if TYPE_CHECKING:
    from fakexport.archive.weights import BuffersReport, WeightsReport


@options.grouped_options
def verify_weights_command(
    subject: Annotated[
        str, typer.Argument(metavar="SOURCE|ARCHIVE", help="Model, as for `check`, or a .pt2 archive.")
    ],
    checkpoint: Annotated[
        str | None,
        typer.Argument(
            metavar="CHECKPOINT",
            help="Checkpoint: a .safetensors, .pt, .pth or .bin file, an index of shards, a folder that "
            "contains one, or `hf:org/name`. Without it, verify the weights in ARCHIVE.",
        ),
    ] = None,
    adapter: options.BoundAdapters = None,
    target: options.BuildDevices = "cpu",
    dtype: options.Dtype = None,
    trust_remote_code: options.TrustRemoteCode = None,
    trust: options.Trust = False,
    format_: options.TextOrJson = "text",
    profiles: Profiles = None,
    *,
    code: UserCode,
) -> None:
    """Check that a checkpoint has every weight of a model or an archive. Only headers are read.

    Without a checkpoint, the weights inside a bound archive are read and verified. Exit code 0: complete and
    bindable. 1: not bindable; names, shapes, dtypes and likely causes are listed. 2: bad usage or an
    invalid file.
    """
    names_archive = subject.endswith(".pt2")
    if names_archive and trust_remote_code is not None:
        raise typer.BadParameter("--trust-remote-code applies to models, not to archives")

    def verified() -> WeightsReport:
        from fakexport.archive import verified_by_name

        if names_archive and checkpoint is not None and not adapter and dtype is None:
            report = verified_by_name(subject, checkpoint, trust=trust)
            if report is not None:
                return report

        from fakexport.archive import verify_archived_weights, verify_weights
        from fakexport.archive.weights import open_checkpoint
        from fakexport.models.sources import parse_dtype

        if checkpoint is not None:
            wanted = None if dtype is None else parse_dtype(dtype)
            opened = open_checkpoint(checkpoint, adapter=adapter or ())
            return verify_weights(
                subject,
                opened,
                target=target,
                dtype=wanted,
                trust=trust,
                trust_remote_code=bool(trust_remote_code),
            )
        if names_archive:
            return verify_archived_weights(subject, trust=trust)
        raise typer.BadParameter("fakexport builds models without weights: pass the checkpoint to verify")

    report = code.run(verified, "verify weights", runs_code=trust or not names_archive)
    from fakexport.report import render_weights

    write_found(report, format_, render_weights)
    if not report.is_bindable:
        raise typer.Exit(1)


@options.grouped_options
def verify_buffers_command(
    factory: Annotated[
        str,
        typer.Argument(
            metavar="FACTORY",
            help="Function that loads the model: file.py:FACTORY or package.module:FACTORY.",
        ),
    ],
    reference: Annotated[
        str | None,
        typer.Argument(
            metavar="REFERENCE",
            help="Source, as for `check`, that builds the same model with the correct values. Default: the "
            "model's own class.",
        ),
    ] = None,
    *,
    code: UserCode,
) -> None:
    """Check the tensors of a loaded model that checkpoints do not contain.

    FACTORY runs with real tensors and returns the loaded model. Its non-persistent buffers and plain tensor
    attributes are compared with the values that the constructor computes. Exit code 0: no value is wrong. 1:
    some are (FE920). 2: bad usage.
    """

    def verified() -> BuffersReport:
        from fakexport.archive.weights import loaded_model, verify_buffers
        from fakexport.models.sources import resolve

        # The path is relative to the working directory, which the model may change.
        right = None if reference is None else resolve(reference)
        return verify_buffers(loaded_model(factory), right)

    report = code.run(verified, "verify buffers")
    write_report(f"{report}\n")
    if not report.is_right:
        raise typer.Exit(1)
