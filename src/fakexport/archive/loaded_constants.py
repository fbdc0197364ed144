"""The constants of a loaded program: tensors with their values, and C++ objects."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, cast

import torch
from torch.export import ExportedProgram

from fakexport._torch.real_execution import real_execution
from fakexport._torch.script_objects import class_of, is_class_of_torch, qualified_name
from fakexport.container import UNTRUSTED, ArchiveError, Container, faults_named
from fakexport.documents import DocumentError, field
from fakexport.history import remember_filled, remember_value, withhold_value

from .codec.program_decoder import MissingObject
from .manifest import MethodManifest
from .saved_object import read_saved_object, refuse_unregistered_classes
from .stored_tensor import StoredObject, StoredTensor, read_constant


def put_constants(
    container: Container,
    program: ExportedProgram,
    manifest: MethodManifest,
    config: Mapping[str, dict[str, Any]],
    *,
    trust: bool = False,
) -> None:
    """Set the values of the constants, in the order of the archive.

    Args:
        container: Its records are verified.
        program: With a fake for each tensor and a `MissingObject` for each object; changed.
        trust: Make objects of the C++ classes that torch itself registers, too.
    Raises:
        ArchiveError: the archive contradicts itself; a class is not registered, or takes no such state.
    """
    if program.constants.keys() != config.keys():
        raise ArchiveError(container.path, "the graph and the constants' config have different constants")
    reasons = {constant.name: constant.detail for constant in manifest.unbound_constants}
    reading = _Reading(container, trust=trust)
    places = dict(program.constants)
    program.constants.clear()
    for name, payload in config.items():
        program.constants[name] = place = places[name]
        if isinstance(place, torch.Tensor) and name in reasons:
            withhold_value(place, reasons[name])
            continue
        stored = field({name: payload}, name, read_constant)
        if isinstance(stored, StoredObject) != isinstance(place, MissingObject):
            raise DocumentError("a tensor in one place and a C++ object in the other").within(name)
        program.constants[name] = reading.constant(stored, place)


class _Reading:
    """Reads each record once: each record is one constant."""

    def __init__(self, container: Container, *, trust: bool) -> None:
        self._container = container
        self._trust = trust
        self._state_bytes = 0
        self._known: dict[tuple[StoredTensor | StoredObject, torch.device | MissingObject], Any] = {}

    def constant(self, stored: StoredTensor | StoredObject, place: Any) -> Any:
        """Return the constant that replaces a fake or a `MissingObject`."""
        key = (stored, place if isinstance(place, MissingObject) else place.device)
        if key not in self._known:
            self._known[key] = (
                self._object(stored, place)
                if isinstance(stored, StoredObject)
                else _tensor(self._container, stored, place)
            )
        return self._known[key]

    def _object(self, stored: StoredObject, missing: MissingObject) -> torch.ScriptObject:
        """Return the object, created by its class from a library that the user chose to load."""
        container, record = self._container, f"data/constants/{stored.record}"
        name = class_of(missing.qualified_name)
        if is_class_of_torch(name) and not self._trust:
            what = f"an object of torch's own class {name}, {UNTRUSTED}"
            raise ArchiveError(container.path, what, record, is_trust_missing=True)
        with faults_named(container.path, record):
            refuse_unregistered_classes([name])  # Before its state is read, which takes memory.
            found = read_saved_object(container.record(record), container.limits)
            self._state_bytes += found.state_bytes
            if self._state_bytes > container.limits.state_bytes:
                raise DocumentError(f"the states of objects exceed {container.limits.state_bytes} bytes")
            if missing.qualified_name != qualified_name(found.class_name):
                raise DocumentError("has a different class in the graph")
            return found.made()


def _tensor(container: Container, stored: StoredTensor, fake: Any) -> torch.Tensor:
    """Return the real tensor for the CPU; for a device that may be missing, the fake one with the value."""
    record = f"data/constants/{stored.record}"
    if (stored.shape, stored.dtype, len(stored.stride)) != (tuple(fake.shape), fake.dtype, fake.dim()):
        raise ArchiveError(container.path, "has a different shape or dtype in the graph", record)
    content = bytearray(container.record(record))
    needed = stored.needed_bytes
    if needed > len(content):
        raise ArchiveError(container.path, f"has {len(content)} bytes, but its tensor takes {needed}", record)
    with real_execution():
        if needed:
            flat = torch.frombuffer(content, dtype=stored.dtype, count=needed // stored.dtype.itemsize)
            value = flat.as_strided(stored.shape, stored.stride, stored.offset)
        else:
            value = torch.empty(stored.shape, dtype=stored.dtype)
        if value.numel() > 1 and not any(stored.stride) and fake.is_contiguous():
            # The beginning of a large state, which takes memory when it is bound.
            remember_filled(fake, value.as_strided((), ()))
            return cast(torch.Tensor, fake)
    if fake.device.type == "cpu":
        return value
    remember_value(fake, value)
    held: torch.Tensor = fake
    return held
