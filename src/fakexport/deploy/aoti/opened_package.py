"""Open a compiled package: check it before its code is loaded, and bind its weights."""

from __future__ import annotations

import os
import platform
import tempfile
from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path

import torch
from torch import nn

from fakexport._torch.operators.inductor import AotiPackage
from fakexport._torch.operators.real_execution import real_execution
from fakexport.archive import bind, load, refuse_unregistered, refuse_unregistered_classes
from fakexport.archive.weights import CheckpointSource, ExpectedWeights, Weight, open_checkpoint
from fakexport.emulation.devices import exists_here
from fakexport.error import first_line
from fakexport.exporting.interface import is_lifted
from fakexport.files.container import ArchiveError, read_container
from fakexport.files.documents import DocumentError

from ..artifact import Artifact, DeployError
from ..signature import Signature
from ..size_ranges import DividedSizes
from ..weights_file import check_owner, file_beside, fitted_weights, raw_chunks
from .graph import laid_out
from .host import instructions_here
from .metadata import PackageMetadata
from .package import PROGRAM, code_names, read_constants, read_metadata, verify_package
from .stand_ins import held_tensors

_SHOWN = 3


class AotiArtifact:
    """A compiled program that is loaded and bound to its weights. Create it with `open_aoti`."""

    def __init__(self, package: AotiPackage, metadata: PackageMetadata) -> None:
        self._package = package
        self._metadata = metadata

    @property
    def signature(self) -> Signature:
        """Inputs and outputs of a call."""
        return self._metadata.signature

    def __call__(self, inputs: Mapping[str, torch.Tensor]) -> dict[str, torch.Tensor]:
        """Run the program, and return its outputs by name. Inputs may have any device and memory layout.

        Raises:
            InputMismatchError: The inputs do not fit. Raised before anything runs.
            DeployError: An operator failed on the values of the inputs.
        """
        self.signature.check(inputs)
        wanted = zip(self.signature.inputs, self._metadata.orders, strict=True)
        flat = [laid_out(inputs[tensor.name].detach().to(tensor.device), order) for tensor, order in wanted]
        try:
            with torch.no_grad():
                leaves = self._package.run(flat)
        except RuntimeError as error:
            raise DeployError(f"the compiled program failed on these inputs: {first_line(error)}") from error
        # The package also returns the program's plain number outputs as tensors. Omit them.
        outputs = zip(self.signature.outputs, leaves, strict=True)
        return {output.name: leaf for output, leaf in outputs if output.is_tensor}


def open_aoti(path: str | os.PathLike[str], *, checkpoint: CheckpointSource | None = None) -> Artifact:
    """Open a package that `compile_aoti` wrote, ready to be called.

    Opening a package executes native code from it, so open only packages that you built. A damaged package is
    detected before its code is loaded.

    Args:
        path: The package.
        checkpoint: As for `bind`. Default: the `.safetensors` file next to the package.

    Raises:
        ArchiveError: The file is damaged, or is not a fakexport package.
        DeployError: The package was compiled for a different machine or torch version, an operator's library
            is not loaded, or the weights are missing, unexpected, or written for a different package.
        BindError, CheckpointError: The weights do not fit the program, or are rejected.
        OSError: The file cannot be opened.

    Warns:
        WeightsWarning: As for `bind`. For the file next to the package, the only possible cause is unexpected
            keys (FE704).
    """
    file = Path(path)
    with read_container(file, trust=True) as package:
        names = code_names(package)
        codes = {code: read_metadata(package, code) for code in names}
        if len(codes) == 1 or not all(each.sizes for each in codes.values()):
            here = _code_for_this_machine(names)
            codes = {here: codes[here]}
        code, metadata = next(iter(codes.items()))
        verify_package(package)
        for each in codes.values():
            _check_machine(file, each, names)
            _check_libraries(file, each)
        program, constants = None, {code: read_constants(package, code) for code in codes}
        if metadata.place == "beside":
            if check_owner(file, file_beside(file), checkpoint, metadata.program_id):
                # The file lacks weights that the code does not use, so `bind` would reject it.
                checkpoint = None
            if checkpoint is not None:
                program = package.record(PROGRAM)
    if metadata.place == "inside":
        if checkpoint is not None:
            raise DeployError(f"{file} contains its weights and does not accept a checkpoint")
        return AotiArtifact(_loaded(file, code), metadata)
    wanted = {tensor.name: tensor for each in codes.values() for tensor in each.tensors}
    read = {name for tensor in wanted.values() for name in (tensor.name, *tensor.aliases)}
    unread = {name for each in codes.values() for name in each.unread} - read
    every = replace(metadata, tensors=tuple(wanted.values()), unread=tuple(unread))
    if program is None or checkpoint is None:
        weights = _weights_beside(file, every)
    else:
        weights = _of_checkpoint(program, every, checkpoint)
    # Programs for several ranges of sizes share their weights.
    weights = {name: tensor.to(metadata.device) for name, tensor in weights.items()}
    opened, known = [], dict[tuple[str, str, bytes], torch.Tensor]()
    for code, each in codes.items():
        own = {tensor.name: weights[tensor.name] for tensor in each.tensors}
        for name, constant in constants[code].items():  # It may be state, which all codes write.
            key = code if is_lifted(name) else "", name, b"".join(raw_chunks(constant))
            own[name] = known.setdefault(key, constant.to(metadata.device))
        opened.append((each.sizes, _bound(file, code, each, own)))
    return opened[0][1] if len(opened) == 1 else DividedSizes(opened)


def _bound(
    file: Path, code: str, metadata: PackageMetadata, tensors: Mapping[str, torch.Tensor]
) -> AotiArtifact:
    loaded = _loaded(file, code)
    if set(loaded.constant_names) != tensors.keys():
        raise ArchiveError(file, "the compiled code expects different weights than its metadata lists")
    if tensors:
        loaded.bind(dict(tensors))
    return AotiArtifact(loaded, metadata)


def _code_for_this_machine(codes: tuple[str, ...]) -> str:
    """Return the code for the GPU of this machine, or the first."""
    here = instructions_here("cuda") if len(codes) > 1 and exists_here("cuda") else ()
    return next((code for code in codes if code in here), codes[0])


def _check_machine(path: Path, metadata: PackageMetadata, codes: tuple[str, ...]) -> None:
    """Check that the torch version, processor and GPU can run the code."""
    made, here = metadata.versions.get("torch", "?"), str(torch.__version__)
    if _release(made) != _release(here):
        raise DeployError(
            f"{path} was compiled with torch {made}, but this is torch {here}: compile it again"
        )
    if metadata.machine != (machine := platform.machine()):
        raise DeployError(f"{path} was compiled for {metadata.machine}, but this machine is {machine}")
    if not exists_here(metadata.device):
        raise DeployError(
            f"{path} was compiled for {metadata.device}, which is not available on this machine"
        )
    has = instructions_here(metadata.device)
    missing = [name for name in metadata.instructions if name not in has]
    if missing and metadata.device != "cpu":
        known = " or ".join(codes if len(codes) > 1 else metadata.instructions)
        raise DeployError(
            f"{path} was compiled for a GPU with {known}, but this one has {has[0]}: compile it for this GPU"
        )
    if missing:
        more = f" and {len(missing) - _SHOWN} more" if len(missing) > _SHOWN else ""
        raise DeployError(
            f"{path} was compiled for a processor with {', '.join(missing[:_SHOWN])}{more}, which this "
            "processor lacks: compile it on this machine"
        )


def _release(version: str) -> tuple[str, ...]:
    """Return the minor release: `2.13` for `2.13.0+cpu`. Packages of one minor release are compatible."""
    return tuple(version.split("+")[0].split(".")[:2])


def _check_libraries(path: Path, metadata: PackageMetadata) -> None:
    classes = [name for name in metadata.libraries_for if "::" in name]
    operators = [name for name in metadata.libraries_for if "::" not in name]
    try:
        refuse_unregistered(operators, metadata.library_modules)
        refuse_unregistered_classes(classes)
    except DocumentError as error:
        raise DeployError(f"{path}: {error}") from None


def _loaded(path: Path, code: str) -> AotiPackage:
    try:
        return AotiPackage(path, code)
    except RuntimeError as error:
        raise DeployError(f"{path} cannot be loaded: {first_line(error)}") from error


def _of_checkpoint(
    program: bytes, metadata: PackageMetadata, checkpoint: CheckpointSource
) -> dict[str, torch.Tensor]:
    """Bind a checkpoint to the program, and return contiguous weights by name.

    Buffers are copied, because compiled code may write into them and the caller's tensors must not change.
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


def _weights_beside(path: Path, metadata: PackageMetadata) -> dict[str, torch.Tensor]:
    """Return the weights of a package from the file next to it, memory-mapped and contiguous."""
    beside = file_beside(path)
    if not beside.exists():
        raise DeployError(f"{path} has no weights: pass a checkpoint, or put {beside.name} next to it")
    names = {tensor.name: (tensor.name, *tensor.aliases) for tensor in metadata.tensors}
    expected = ExpectedWeights(
        weights={
            name: Weight(tensor.shape, getattr(torch, tensor.dtype))
            for tensor in metadata.tensors
            for name in names[tensor.name]
        },
        tied=tuple(group for group in names.values() if len(group) > 1),
    )
    opened = open_checkpoint(beside)
    read = {name: entry for name, entry in opened.entries.items() if name not in metadata.unread}
    opened = replace(opened, entries=read)
    found = fitted_weights(expected, opened, name=path.name, check_finite=False)
    return {name: found[name] for name in names}
