"""Does a checkpoint fit what an archive wants, and are the weights in an archive whole?"""

from __future__ import annotations

import os
from collections.abc import Callable, Hashable, Mapping
from pathlib import Path
from typing import Any, TypeGuard

import torch
from torch import nn
from torch.export import ExportedProgram

from fakexport._torch.real_execution import real_execution
from fakexport.fake import is_fake
from fakexport.program.program_facts import facts_of
from fakexport.program.tensor_identity import tensor_identity
from fakexport.weights import WeightFinding, WeightsReport, open_checkpoint
from fakexport.weights import verify_weights as verify_model
from fakexport.weights.expectation import ExpectedWeights, ModelSource, Weight
from fakexport.weights.finite import is_finite
from fakexport.weights.verification import CheckpointSource, verified

from .bundle_binding import MethodWants, own_part, verified_bundle
from .bundle_loading import load_bundle_archive
from .description import ArchiveDescription, BundleDescription, describe, describe_bundle
from .loading import load_archive
from .manifest import Manifest
from .methods import methods_of

__all__ = ["is_archive", "verify_archived_weights", "verify_weights"]


def is_archive(subject: object) -> TypeGuard[str | os.PathLike[str]]:
    """Whether a text or path names an archive and no model: `model.pt2`."""
    return isinstance(subject, (str, os.PathLike)) and os.fspath(subject).endswith(".pt2")


def verify_weights(
    source_or_program: str | Path | nn.Module | Callable[[], Any] | ExportedProgram,
    checkpoint: CheckpointSource,
    *,
    source: ModelSource | None = None,
    topology: str = "cpu",
    dtype: torch.dtype | None = None,
    trust: bool = False,
) -> WeightsReport:
    """As `weights.verify_weights`, also for an archive, whose description is all that is read.

    Args:
        source_or_program: As for `weights.verify_weights`; or the path of a `.pt2` file. Its operators need
            not be registered, nor its devices be here.
        checkpoint, source, topology, dtype: As for `weights.verify_weights`. An archive has its dtypes.
        trust: Of an archive: whether pickled records and native libraries may be in it. None is run.
    Raises:
        ArchiveError: the archive is refused.
        CheckpointError, ModelNotBuilt, ValueError, TypeError: as for `weights.verify_weights`.
    Reports:
        FE701, FE702, FE703, FE704, FE705, FE707.
    """
    if not is_archive(source_or_program):
        model = str(source_or_program) if isinstance(source_or_program, Path) else source_or_program
        if isinstance(model, ExportedProgram):
            checkpoint = own_part(checkpoint, facts_of(model).prefix)
        return verify_model(model, checkpoint, source=source, topology=topology, dtype=dtype)
    if dtype is not None:
        raise ValueError("the dtypes of an archive are fixed: export the program with another dtype")
    path = os.fspath(source_or_program)
    if methods_of(path, trust=trust):
        return _bundle_verified(describe_bundle(path, trust=trust), checkpoint, source, topology)
    found = describe(path, trust=trust)
    return verified(
        _expected(found),
        open_checkpoint(own_part(checkpoint, found.manifest.prefix)),
        name=path,
        source=source,
        recipes=found.manifest.recipes,
        topology=topology,
    ).report


def _bundle_verified(
    found: BundleDescription, checkpoint: CheckpointSource, source: ModelSource | None, topology: str
) -> WeightsReport:
    wants = {
        method: MethodWants(
            _expected(about), found.manifest.prefixes.get(method), about.manifest.recipes, source
        )
        for method, about in found.methods.items()
    }
    return verified_bundle(wants, checkpoint, name=found.path, topology=topology)


def verify_archived_weights(path: str | os.PathLike[str], *, trust: bool = False) -> WeightsReport:
    """Reads all weights of a bound archive through: they are whole, or the archive is refused.

    Args:
        path, trust: As for `load`.
    Raises:
        ArchiveError: a weight is damaged, or there are none.
    Reports:
        FE706.
    """
    if methods_of(path, trust=trust):
        opened = load_bundle_archive(path, trust=trust)
        return _read_through(path, opened.bundle, opened.manifest.methods)
    loaded = load_archive(path, trust=trust)
    return _read_through(path, {"": loaded.program}, {"": loaded.manifest})


def _read_through(
    path: str | os.PathLike[str],
    programs: Mapping[str, ExportedProgram],
    manifests: Mapping[str, Manifest],
) -> WeightsReport:
    """The report on the weights of programs by method; one that several have is looked at once."""
    weights: dict[Hashable, tuple[str, torch.Tensor]] = {}
    for method, manifest in manifests.items():
        state = programs[method].state_dict
        if manifest.tensors and (manifest.weights == "none" or any(map(is_fake, state.values()))):
            raise ValueError(f"{os.fspath(path)} has no weights of its own: name a checkpoint to verify")
        for entry in manifest.tensors:
            tensor = state[entry.name]
            name = f"{method}: {entry.name}" if method else entry.name
            weights.setdefault(tensor_identity(tensor), (name, tensor))
    if not weights:
        raise ValueError(f"{os.fspath(path)} has no weights of its own: name a checkpoint to verify")
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


def _expected(found: ArchiveDescription) -> ExpectedWeights:
    """What the archive wants of a checkpoint: its weights, and values of constants that have none."""
    tensors = found.manifest.tensors
    return ExpectedWeights(
        weights={
            name: Weight(tensor.shape, getattr(torch, tensor.dtype))
            for tensor in tensors
            for name in (tensor.name, *tensor.aliases)
        },
        constants={
            constant.name: Weight(constant.shape, getattr(torch, constant.dtype))
            for constant in found.constants
            if constant.reason is not None
        },
        tied=tuple((tensor.name, *tensor.aliases) for tensor in tensors if tensor.aliases),
        transient=frozenset(constant.name for constant in found.constants if constant.reason is None),
    )
