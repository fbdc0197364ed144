"""Verify that a checkpoint fits an archive, and that the weights in an archive are undamaged."""

from __future__ import annotations

import os
from collections.abc import Callable, Hashable
from pathlib import Path
from typing import Any, TypeGuard

import torch
from torch import nn
from torch.export import ExportedProgram

from fakexport._torch.real_execution import real_execution
from fakexport.error import InvalidValue
from fakexport.fake import is_fake
from fakexport.program import tensor_identity
from fakexport.weights import (
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

from .bundle import Bundle
from .computed_weights import empty_values
from .description import ArchiveDescription, describe
from .loading import load_archive
from .manifest import ALONE
from .method_readings import MethodWants, readings, report_of
from .methods import made_up_prefixes


def is_archive(subject: object) -> TypeGuard[str | os.PathLike[str]]:
    """Return whether a text or path names an archive, `model.pt2`, rather than a model."""
    return isinstance(subject, (str, os.PathLike)) and os.fspath(subject).endswith(".pt2")


def verify_weights(
    source_or_program: str | Path | nn.Module | Callable[[], Any] | ExportedProgram | Bundle,
    checkpoint: CheckpointSource,
    *,
    source: ModelSource | None = None,
    target: str = "cpu",
    dtype: torch.dtype | None = None,
    trust: bool = False,
) -> WeightsReport:
    """Report whether a checkpoint has every weight, from the headers of its files.

    No data is read and models are built without data, so it takes seconds for a checkpoint of any size.
    Entries in the layout of the Hugging Face hub are converted as in transformers.

    Args:
        source_or_program: `file.py:factory`, `hf:config.json` and the like, as for `check`; a factory; a
            module; a program; a bundle; or the path of a `.pt2` file, of which only the description
            is read: its operators need not be registered, nor its devices available.
        checkpoint: A file, a folder or tensors by name, as for `open_checkpoint`.
        target: The topology, the devices that the model's constructor may name.
        dtype: Floating-point dtype in which a model is built; default: the source's own, else float32.
        source: For a program, the model that it was exported from, for the conversion of a checkpoint in
            the hub's layout. Default: the recorded one, from the export or from its archive; else the
            `config.json` next to the checkpoint, if the names do not fit.
        trust: For an archive, accept pickled records and native libraries in it. None are run.
    Returns:
        Everything that does not fit, with the likely cause. `is_bindable` is whether `bind` will accept it
        (unless tied weights differ, which only their data shows).
    Raises:
        ArchiveError: the archive is refused.
        CheckpointError: the checkpoint is missing or refused.
        ModelNotBuilt: the model's constructor raised.
        ValueError, TypeError: no such source or topology; a dtype for an archive.
    Reports:
        FE701, FE702, FE703, FE704, FE705, FE707.

    Example:
        >>> verify_weights(nn.Linear(4, 2), {"weight": torch.zeros(2, 4), "bias": torch.zeros(2)}).is_bindable
        True
    """
    if is_archive(source_or_program):
        if dtype is not None:
            raise InvalidValue("the dtypes of an archive are fixed: export the program with another dtype")
        found, name = describe(source_or_program, trust=trust), os.fspath(source_or_program)
        wants = {method: _wants(found, method, source) for method in found.methods}
    elif isinstance(source_or_program, ExportedProgram | Bundle):
        given = source_or_program
        bundle = given if isinstance(given, Bundle) else Bundle({ALONE: given})
        name = "the program" if bundle.is_alone else "the bundle"
        wants = {method: MethodWants.of(bundle, method, source) for method in bundle}
    else:
        model = str(source_or_program) if isinstance(source_or_program, Path) else source_or_program
        return verify_model(model, checkpoint, topology=target, dtype=dtype)
    opened = open_checkpoint(checkpoint)
    return report_of(readings(wants, opened, topology=target), opened, name=name)


def verify_archived_weights(path: str | os.PathLike[str], *, trust: bool = False) -> WeightsReport:
    """Read and verify all weights of a bound archive; refuse the archive if one is damaged.

    Args:
        path, trust: As for `load`.
    Raises:
        ArchiveError: a weight is damaged, or there are none.
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


def _wants(found: ArchiveDescription, method: str, source: ModelSource | None) -> MethodWants:
    """Return the weights that a program of an archive expects, and values of constants without one."""
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
    # What torch wrote into one file shares nothing: each program's names are its own.
    made_up = {} if found.has_manifest else made_up_prefixes(found.manifest)
    prefix = made_up.get(method, about.manifest.prefix)
    return MethodWants(
        expected,
        prefix,
        about.manifest.recipes,
        empty_values(about.manifest.computed),
        source,
        about.manifest.adapter,
    )
