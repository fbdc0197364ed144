"""Verify that a checkpoint matches an archive, and that the weights in an archive are undamaged."""

from __future__ import annotations

import os
from collections.abc import Callable, Hashable
from pathlib import Path
from typing import Any, TypeGuard

import torch
from torch import nn
from torch.export import ExportedProgram

from fakexport._torch.operators.real_execution import real_execution
from fakexport.archive.weights import (
    CheckpointSource,
    ExpectedWeights,
    ModelSource,
    Weight,
    WeightFinding,
    WeightsReport,
    is_finite,
    open_checkpoint,
    verify_model,
)
from fakexport.emulation.fake import is_fake
from fakexport.error import InvalidValue
from fakexport.exporting.program import tensor_identity

from .bundle import Bundle
from .description import ArchiveDescription, describe
from .loading import load_archive
from .manifest import ALONE
from .method_readings import MethodRequirements, readings, report_of
from .methods import made_up_prefixes


def is_archive(subject: object) -> TypeGuard[str | os.PathLike[str]]:
    """Return whether a string or path names an archive, such as `model.pt2`, rather than a model."""
    return isinstance(subject, (str, os.PathLike)) and os.fspath(subject).endswith(".pt2")


def verify_weights(
    source_or_program: str | Path | nn.Module | Callable[[], Any] | ExportedProgram | Bundle,
    checkpoint: CheckpointSource,
    *,
    source: ModelSource | None = None,
    target: str = "cpu",
    dtype: torch.dtype | None = None,
    trust: bool = False,
    trust_remote_code: bool = False,
) -> WeightsReport:
    """Report whether a checkpoint has every weight of a model. Only the headers of its files are read.

    Models are built without data, so this takes seconds for a checkpoint of any size. Entries in the layout
    of the Hugging Face hub are converted as in transformers.

    Args:
        source_or_program: A source such as `file.py:factory` or `hf:config.json`, as for `check`; a factory;
            a module; a program; a bundle; or the path of a `.pt2` file. Only the description of a `.pt2` file
            is read, so operators need not be registered, and devices need not be available.
        checkpoint: A file, a folder or tensors by name, as for `open_checkpoint`.
        source: For a program, the model that it was exported from, used to convert a checkpoint in the hub's
            layout. Default: the source recorded in the program; if there is none and the names do not match,
            the `config.json` next to the checkpoint.
        target: The devices that the model's constructor may use, as a topology.
        dtype: Floating-point dtype in which a model is built. Default: the dtype of the source, otherwise
            float32.
        trust: Accept an archive with pickled records or native libraries. They are not read.
        trust_remote_code: Whether to run the model code of an `hf:` repository or folder, as for `check`.

    Returns:
        A report of every mismatch, with its likely cause. If `is_bindable` is true, `bind` accepts the
        checkpoint, unless tied weights have different data, which the headers do not show.

    Raises:
        ArchiveError: The archive is rejected.
        CheckpointError: The checkpoint is missing or rejected.
        ModelNotBuilt: The model's constructor raised an exception.
        ValueError, TypeError: The source or topology does not exist, or a dtype is given for an archive.

    Warns:
        WeightsWarning: The `config.json` next to the checkpoint has other settings than the exported one.

    Reports:
        FE701, FE702, FE703, FE704, FE705, FE707.

    Example:
        >>> verify_weights(nn.Linear(4, 2), {"weight": torch.zeros(2, 4), "bias": torch.zeros(2)}).is_bindable
        True
    """
    if is_archive(source_or_program):
        if dtype is not None:
            raise InvalidValue(
                "the dtypes of an archive cannot be changed: export the program in the requested dtype"
            )
        found, name = describe(source_or_program, trust=trust), os.fspath(source_or_program)
        wants = {method: _wants(found, method, source) for method in found.methods}
    elif isinstance(source_or_program, ExportedProgram | Bundle):
        given = source_or_program
        bundle = given if isinstance(given, Bundle) else Bundle({ALONE: given})
        name = "the program" if bundle.is_alone else "the bundle"
        wants = {method: MethodRequirements.of(bundle, method, source) for method in bundle}
    else:
        model = str(source_or_program) if isinstance(source_or_program, Path) else source_or_program
        return verify_model(
            model, checkpoint, topology=target, dtype=dtype, trust_remote_code=trust_remote_code
        )
    opened = open_checkpoint(checkpoint)
    return report_of(readings(wants, opened, topology=target), opened, name=name)


def verify_archived_weights(path: str | os.PathLike[str], *, trust: bool = False) -> WeightsReport:
    """Read all weights of a bound archive, verify their hashes, and check them for NaN and infinity.

    Args:
        path, trust: As for `load`.

    Raises:
        ArchiveError: A weight is damaged.
        ValueError: The archive has no weights.

    Reports:
        FE706.
    """
    loaded = load_archive(path, is_whole=True, trust=trust)
    weights: dict[Hashable, tuple[str, torch.Tensor]] = {}
    for method, manifest in loaded.manifest.methods.items():
        state = loaded.bundle[method].state_dict
        if manifest.tensors and (manifest.weights == "none" or any(map(is_fake, state.values()))):
            raise InvalidValue(f"{os.fspath(path)} has no weights of its own: pass a checkpoint to verify")
        for entry in manifest.tensors:
            tensor = state[entry.name]
            name = f"{method}: {entry.name}" if loaded.manifest.is_bundle else entry.name
            weights.setdefault(tensor_identity(tensor), (name, tensor))
    if not weights:
        raise InvalidValue(f"{os.fspath(path)} has no weights of its own: pass a checkpoint to verify")
    with real_execution():
        bad = tuple(name for name, tensor in weights.values() if not is_finite(tensor))
    return WeightsReport(
        source=os.fspath(path),
        checkpoint=os.fspath(path),
        weights=len(weights),
        entries=len(weights),
        entry_bytes=sum(tensor.nbytes for _, tensor in weights.values()),
        converted=0,
        findings=(WeightFinding("FE706", bad),) if bad else (),
    )


def _wants(found: ArchiveDescription, method: str, source: ModelSource | None) -> MethodRequirements:
    """Return the weights, and the constants without a value, that a program of an archive needs."""
    about = found.methods[method]
    tensors = about.manifest.tensors
    expected = ExpectedWeights(
        weights={
            name: Weight(tensor.shape, getattr(torch, tensor.dtype))
            for tensor in tensors
            for name in (tensor.name, *tensor.aliases)
        },
        constants={
            constant.name: Weight(constant.shape, getattr(torch, constant.dtype))
            for constant in about.constants
            if constant.reason is not None
        },
        tied=tuple((tensor.name, *tensor.aliases) for tensor in tensors if tensor.aliases),
        transient=frozenset(constant.name for constant in about.constants if constant.reason is None),
    )
    # Programs that torch wrote into one file share nothing, so prefixes keep their names separate.
    made_up = {} if found.has_manifest else made_up_prefixes(found.manifest)
    prefix = made_up.get(method, about.manifest.prefix)
    return MethodRequirements(
        expected,
        prefix,
        about.manifest.recipes,
        # The values are not read, because a report only needs to know which of them exist.
        {
            n: None if r is None else torch.empty((), device="meta")
            for n, r in about.manifest.computed.items()
        },
        source,
        about.manifest.adapter,
        about.manifest.settings,
    )
