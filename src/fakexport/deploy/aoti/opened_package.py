"""An opened compiled package: checked before its code is loaded, bound before it is called."""

from __future__ import annotations

import os
import tempfile
from collections.abc import Mapping
from pathlib import Path

import torch
from torch import nn

from fakexport._torch.inductor import AotiPackage
from fakexport._torch.real_execution import real_execution
from fakexport.archive import bind, load, refuse_unregistered, refuse_unregistered_classes
from fakexport.container import ArchiveError, read_container
from fakexport.devices import exists_here
from fakexport.documents import DocumentError
from fakexport.error import first_line
from fakexport.program import plain_name
from fakexport.weights import Checkpoint, CheckpointSource, WeightFinding, are_equal, open_checkpoint, warn_of

from ..artifact import DeployError
from ..signature import Signature
from ..weights_file import check_owner, file_beside
from .graph import laid_out
from .host import instructions_here, machine_here
from .metadata import PackageMetadata, TensorDescription
from .package import PROGRAM, read_constants, read_metadata, verify_package
from .stand_ins import held_tensors

_SHOWN = 3


class AotiArtifact:
    """A program as native code in this process, bound to its weights; `open_aoti` makes it."""

    def __init__(self, package: AotiPackage, metadata: PackageMetadata) -> None:
        self._package = package
        self._metadata = metadata

    @property
    def signature(self) -> Signature:
        """Inputs and outputs of a call."""
        return self._metadata.signature

    def __call__(self, inputs: Mapping[str, torch.Tensor]) -> dict[str, torch.Tensor]:
        """Return the output tensors by name.

        Args:
            inputs: A tensor for each input, by name, on any device and in any memory layout.
        Raises:
            UnsuitableInputs: before anything runs.
            DeployError: an operator failed on its values while the code ran.
        """
        self.signature.check(inputs)
        wanted = zip(self.signature.inputs, self._metadata.orders, strict=True)
        flat = [laid_out(inputs[tensor.name].detach().to(tensor.device), order) for tensor, order in wanted]
        try:
            with torch.no_grad():
                leaves = self._package.run(flat)
        except RuntimeError as error:
            raise DeployError(f"the compiled program failed on these inputs: {first_line(error)}") from error
        # What is no tensor in the program, a number, comes as a tensor.
        outputs = zip(self.signature.outputs, leaves, strict=True)
        return {output.name: leaf for output, leaf in outputs if output.is_tensor}


def open_aoti(path: str | os.PathLike[str], *, checkpoint: CheckpointSource | None = None) -> AotiArtifact:
    """Return a package that `compile_aoti` wrote, ready to be called.

    It contains native code that runs on load: open only packages that you built. A faulty package is detected
    before its code is loaded.

    Args:
        path: The package.
        checkpoint: The weights, for a package that has none inside: anything that `bind` accepts for the
            program, in the same layouts. Default: the `.safetensors` next to the package.
    Raises:
        ArchiveError: the file is damaged, or not a fakexport package.
        DeployError: it was compiled for another machine or torch, an operator's library is not loaded, the
            weights are missing, unexpected, or were written for a different package.
        BindError, CheckpointError: the checkpoint does not fit the program, or is refused.
        OSError: the file cannot be opened.
    Warns:
        WeightsWarning: as for `bind`; for the file next to it, unexpected keys (FE704).
    """
    file = Path(path)
    with read_container(file, trust=True) as package:
        metadata = read_metadata(package)
        verify_package(package)
        _check_machine(file, metadata)
        _check_libraries(file, metadata)
        program, constants = None, read_constants(package)
        if metadata.place == "beside":
            if check_owner(file, file_beside(file), checkpoint, metadata.program_id):
                checkpoint = None  # What the code does not use is not in it: it would not fit the program.
            if checkpoint is not None:
                program = package.record(PROGRAM)
    if metadata.place == "inside":
        if checkpoint is not None:
            raise DeployError(f"{file} contains its weights and takes no checkpoint")
        return AotiArtifact(_loaded(file), metadata)
    if program is None or checkpoint is None:
        weights = weights_beside(file, metadata)
    else:
        weights = _of_checkpoint(program, metadata, checkpoint)
    tensors = {**weights, **constants}
    code = _loaded(file)
    if set(code.constant_names) != tensors.keys():
        raise ArchiveError(file, "the compiled code expects different weights from its metadata")
    if tensors:
        code.bind({name: tensor.to(metadata.device) for name, tensor in tensors.items()})
    return AotiArtifact(code, metadata)


def _check_machine(path: Path, metadata: PackageMetadata) -> None:
    """Refuse code that this processor, GPU or torch cannot run."""
    made, here = metadata.versions.get("torch", "?"), str(torch.__version__)
    if _release(made) != _release(here):
        raise DeployError(
            f"{path} was compiled with torch {made}, but this is torch {here}: compile it again"
        )
    if metadata.machine != machine_here():
        raise DeployError(f"{path} was compiled for {metadata.machine}, but this machine is {machine_here()}")
    if not exists_here(metadata.device):
        raise DeployError(
            f"{path} was compiled for {metadata.device}, which is not available on this machine"
        )
    has = instructions_here(metadata.device)
    if missing := [name for name in metadata.instructions if name not in has]:
        more = f" and {len(missing) - _SHOWN} more" if len(missing) > _SHOWN else ""
        kind = "processor" if metadata.device == "cpu" else "GPU"
        raise DeployError(
            f"{path} was compiled for a {kind} with {', '.join(missing[:_SHOWN])}{more}, which this "
            "one lacks: compile it here"
        )


def _release(version: str) -> tuple[str, ...]:
    """Return `2.13` for `2.13.0+cpu`: packages of one minor release share an interface."""
    return tuple(version.split("+")[0].split(".")[:2])


def _check_libraries(path: Path, metadata: PackageMetadata) -> None:
    classes = [name for name in metadata.libraries_for if "::" in name]
    operators = [name for name in metadata.libraries_for if "::" not in name]
    try:
        refuse_unregistered(operators, metadata.library_modules)
        refuse_unregistered_classes(classes)
    except DocumentError as error:
        raise DeployError(f"{path}: {error}") from None


def _loaded(path: Path) -> AotiPackage:
    try:
        return AotiPackage(path)
    except RuntimeError as error:
        raise DeployError(f"{path} cannot be loaded: {first_line(error)}") from error


def _of_checkpoint(
    program: bytes, metadata: PackageMetadata, checkpoint: CheckpointSource
) -> dict[str, torch.Tensor]:
    """Return the program's weights, contiguous, bound with all that is known of the checkpoint's layout.

    Buffers, which the code may write into, are copies: tensors of a mapping belong to the caller.
    """
    with tempfile.TemporaryDirectory(prefix="fakexport-") as folder:
        archive = Path(folder, "program.pt2")
        archive.write_bytes(program)
        held = held_tensors(bind(load(archive, trust=True), checkpoint))
    weights = {}
    with real_execution():
        for wanted in metadata.tensors:
            found = held[wanted.name].detach().contiguous()
            is_buffer = not isinstance(held[wanted.name], nn.Parameter)
            weights[wanted.name] = found.clone() if is_buffer else found
    return weights


def weights_beside(path: Path, metadata: PackageMetadata) -> dict[str, torch.Tensor]:
    """Return the weights that a package expects, by their names in its code; mapped, contiguous.

    Raises:
        DeployError: the file or a weight is missing, a shape or dtype differs, or tied weights differ.
        CheckpointError: the file is refused.
    Warns:
        WeightsWarning: the file has unexpected keys (FE704), as for `bind`.
    """
    beside = file_beside(path)
    if not beside.exists():
        raise DeployError(f"{path} has no weights: pass a checkpoint, or put {beside.name} next to it")
    opened = open_checkpoint(beside)
    weights = {wanted.name: _weight(beside, wanted, opened) for wanted in metadata.tensors}
    known = _known_names(metadata)
    if others := tuple(name for name in opened.entries if name not in known):
        warn_of(str(beside), [WeightFinding("FE704", others)])
    return weights


def _known_names(metadata: PackageMetadata) -> set[str]:
    wanted = (name for tensor in metadata.tensors for name in (tensor.name, *tensor.aliases))
    return {*wanted, *metadata.unread}


def _weight(path: Path, wanted: TensorDescription, opened: Checkpoint) -> torch.Tensor:
    names = [name for name in (wanted.name, *wanted.aliases) if name in opened.entries]
    if not names:
        raise DeployError(f"{path}: the weight {wanted.name} is missing")
    for name in names:
        found = opened.entries[name]
        if (plain_name(found.dtype), found.shape) != (wanted.dtype, wanted.shape):
            raise DeployError(
                f"{path}: the weight {name} is {plain_name(found.dtype)}{list(found.shape)}, but the "
                f"program expects {wanted.dtype}{list(wanted.shape)}"
            )
    with real_execution():
        first, *others = (opened.tensor(name) for name in names)
        for name, other in zip(names[1:], others, strict=True):
            if not are_equal(first, other):
                raise DeployError(
                    f"{path}: {names[0]} and {name} differ, but are a single weight of the program"
                )
        return first.detach().contiguous()
