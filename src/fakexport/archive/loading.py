"""Loading a program from an archive that anybody may have written."""

from __future__ import annotations

import os
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any, NoReturn

import torch
from torch.export import ExportedProgram

from fakexport._torch.fake_tensors import FakeTensor, FakeTensorMode, mode_of, new_fake_mode
from fakexport._torch.real_execution import real_execution
from fakexport.documents.document_error import DocumentError
from fakexport.documents.typed_json import entries, field, items, mapping, text
from fakexport.fake import remember_value, withhold_value
from fakexport.weights.relocation import exists_here

from .codec.collection_pause import collection_paused
from .codec.program_decoder import program_from_json
from .codec.value_decoder import read_dtype
from .container.reader import Container, read_container
from .described_container import read_manifest, verify_records
from .error import ArchiveError
from .extent import extent
from .manifest import Location, Manifest, TensorEntry
from .saving import CONSTANTS_CONFIG, MODEL, WEIGHTS_CONFIG

__all__ = ["LoadedArchive", "UnboundProgram", "load", "load_archive"]

_SHOWN = 5


class UnboundProgram(RuntimeError):
    """A program was asked to run, or for a module that runs, and has no weights.

    Args:
        names: Of the weights and constants that are missing.
    """

    def __init__(self, names: tuple[str, ...]) -> None:
        shown = ", ".join(names[:_SHOWN]) + (
            f" and {len(names) - _SHOWN} more" if len(names) > _SHOWN else ""
        )
        super().__init__(
            f"this program has no weights, bind them first: `fakexport.bind(program, checkpoint)`; "
            f"{len(names)} missing: {shown}"
        )
        self.names = names


@dataclass(frozen=True)
class LoadedArchive:
    """An archive's program and what the archive says about it.

    Args:
        program: With fake weights, or with real ones if the archive has them.
        manifest: Where it came from, what it needs.
    """

    program: ExportedProgram
    manifest: Manifest


def load(path: str | os.PathLike[str]) -> ExportedProgram:
    """The program of an archive, on any machine, whatever devices it names.

    Nothing that the file names is run, imported or unpickled. Weights are fake where the archive has none:
    the program can be read, compared and bound, and refuses to run before. Constants have their values.

    Args:
        path: A `.pt2` file that `save` or `fakexport bind` wrote.
    Raises:
        ArchiveError: the file is refused: damaged, hostile, of another kind or version; or an operator's
            library is not loaded. One line.
        OSError: it cannot be opened.

    Example:
        >>> from fakexport.archive import save
        >>> from fakexport.capture import export
        >>> program = export(lambda: torch.nn.Linear(4, 2), (torch.zeros(3, 4),))
        >>> _ = save(program, "/tmp/linear.pt2")
        >>> load("/tmp/linear.pt2").state_dict["weight"].shape
        torch.Size([2, 4])
    """
    return load_archive(path).program


def load_archive(path: str | os.PathLike[str]) -> LoadedArchive:
    """As `load`, with the manifest."""
    with read_container(path) as container:
        manifest = read_manifest(container)
        verify_records(container, manifest)
        return LoadedArchive(_program(container, manifest), manifest)


@contextmanager
def _reading(container: Container, record: str) -> Iterator[None]:
    """Names the archive and the record in what is wrong with a document."""
    try:
        yield
    except DocumentError as error:
        raise ArchiveError(container.path, str(error), record) from error


def _program(container: Container, manifest: Manifest) -> ExportedProgram:
    with _reading(container, MODEL), collection_paused():
        program = program_from_json(container.json(MODEL), state_dict=None, constants=None)
    weights = _config(container, WEIGHTS_CONFIG)
    constants = _config(container, CONSTANTS_CONFIG)
    mode = mode_of(
        node.meta["val"] for node in program.graph.nodes if isinstance(node.meta.get("val"), FakeTensor)
    )
    _put_weights(container, program, manifest, weights, mode or new_fake_mode())
    with _reading(container, CONSTANTS_CONFIG):
        missing = _put_constants(container, program, manifest, constants)
    if manifest.weights == "none" or missing:
        names = (*(program.state_dict if manifest.weights == "none" else ()), *missing)
        if names:
            vars(program)["module"] = _Refusal(names)
    return program


class _Refusal:
    """Stands in for `program.module`, which whoever runs or compiles a program calls first."""

    def __init__(self, names: tuple[str, ...]) -> None:
        self._names = names

    def __call__(self, *args: Any, **kwargs: Any) -> NoReturn:
        raise UnboundProgram(self._names)


def _config(container: Container, name: str) -> dict[str, dict[str, Any]]:
    with _reading(container, name):
        return field(mapping(container.json(name)), "config", lambda v: entries(v, mapping))


def _put_weights(
    container: Container,
    program: ExportedProgram,
    manifest: Manifest,
    config: Mapping[str, dict[str, Any]],
    mode: FakeTensorMode,
) -> None:
    """Replaces the state dict by the one that the archive describes, ties and unused weights included."""
    state: dict[str, torch.Tensor] = {}
    for entry in manifest.tensors:
        names = (entry.name, *entry.aliases)
        taken = next((program.state_dict[name] for name in names if name in program.state_dict), None)
        if taken is not None and (tuple(taken.shape), str(taken.dtype)) != (
            entry.shape,
            f"torch.{entry.dtype}",
        ):
            raise ArchiveError(container.path, "has another shape or dtype in the graph", entry.name)
        if entry.location is not None:
            tensor = _mapped(container, entry, entry.location)
        else:
            tensor = taken if taken is not None else _fake(entry, mode)
        if entry.is_parameter and not isinstance(tensor, torch.nn.Parameter):
            tensor = torch.nn.Parameter(tensor, requires_grad=entry.requires_grad)
        state.update(dict.fromkeys(names, tensor))
    if state.keys() != config.keys() or not program.state_dict.keys() <= state.keys():
        raise ArchiveError(
            container.path, "the manifest, the graph and the weights' config name other weights"
        )
    program.state_dict.clear()
    program.state_dict.update({name: state[name] for name in config})


def _mapped(container: Container, entry: TensorEntry, location: Location) -> torch.Tensor:
    """A weight of the archive, in memory of the file: no byte is read before it is used."""
    if not exists_here(entry.device):
        raise ArchiveError(container.path, f"is on {entry.device}, which is not on this machine", entry.name)
    dtype = getattr(torch, entry.dtype)
    content = container.mapped(location.file)[location.offset :][: entry.extent_bytes]
    with real_execution():
        if not content:
            return torch.empty(entry.shape, dtype=dtype, device=entry.device)
        flat = torch.frombuffer(content, dtype=dtype)
        return flat.as_strided(entry.shape, entry.stride, entry.storage_offset).to(entry.device)


def _fake(entry: TensorEntry, mode: FakeTensorMode) -> torch.Tensor:
    with mode:
        return torch.empty_strided(
            entry.shape, entry.stride, dtype=getattr(torch, entry.dtype), device=entry.device
        )


def _put_constants(
    container: Container, program: ExportedProgram, manifest: Manifest, config: Mapping[str, dict[str, Any]]
) -> tuple[str, ...]:
    """Gives the constants their values; the names of those without one."""
    if program.constants.keys() != config.keys():
        raise ArchiveError(container.path, "the graph and the constants' config name other constants")
    reasons = {constant.name: constant.detail for constant in manifest.unbound_constants}
    shared: dict[tuple[str, torch.device], torch.Tensor] = {}
    fakes = dict(program.constants)
    program.constants.clear()  # To fill it in the order of the archive.
    for name, payload in config.items():
        program.constants[name] = fake = fakes[name]
        if name in reasons:
            withhold_value(fake, reasons[name])
            continue
        key = (f"data/constants/{field(payload, 'path_name', text)}", fake.device)
        if key not in shared:
            shared[key] = _constant(container, key[0], payload, fake)
        if (shared[key].shape, shared[key].dtype) != (fake.shape, fake.dtype):
            raise ArchiveError(container.path, "has another shape or dtype in the graph", key[0])
        program.constants[name] = shared[key]
    return tuple(name for name in config if name in reasons)


def _constant(container: Container, record: str, payload: dict[str, Any], fake: FakeTensor) -> torch.Tensor:
    """The real tensor for the CPU; for a device that may not be here, the fake one with the value."""
    meta = field(payload, "tensor_meta", mapping)
    dtype = field(meta, "dtype", read_dtype)
    shape = field(meta, "sizes", lambda v: items(v, _plain_int))
    strides = field(meta, "strides", lambda v: items(v, _plain_int))
    if (tuple(shape), dtype, len(strides)) != (tuple(fake.shape), fake.dtype, fake.dim()):
        raise ArchiveError(container.path, "has another shape or dtype in the graph", record)
    content = bytearray(container.record(record))
    needed = extent(shape, strides) * dtype.itemsize
    if needed != len(content):
        raise ArchiveError(container.path, f"has {len(content)} bytes, and its tensor takes {needed}", record)
    with real_execution():
        if needed:
            value = torch.frombuffer(content, dtype=dtype).as_strided(shape, strides)
        else:
            value = torch.empty(shape, dtype=dtype)
    if fake.device.type == "cpu":
        return value
    remember_value(fake, value)
    return fake


def _plain_int(value: Any) -> int:
    number = mapping(value).get("as_int")
    if type(number) is not int or number < 0:
        raise DocumentError("expected a size that is a plain number")
    return number
