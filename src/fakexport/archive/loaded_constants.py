"""Load the constants of a program: tensors with their values, and C++ objects."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, cast

import torch
from torch.export import ExportedProgram

from fakexport._torch.operators.packaged_operators import class_of
from fakexport._torch.operators.real_execution import real_execution
from fakexport._torch.tracing.script_objects import is_class_of_torch, qualified_name
from fakexport.emulation.history import remember_filled, set_constant_value, withhold_value
from fakexport.files.container import UNTRUSTED, ArchiveError, Container, faults_named
from fakexport.files.documents import DocumentError, field

from .codec.program import MissingObject
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
    """Set the values of a program's constants. The caller has verified the records of the archive.

    The program has a fake tensor or a `MissingObject` for each constant. It is modified in place, and its
    constants are put into the order of the archive. With `trust`, objects of C++ classes that torch itself
    registers are created too.
    """
    if program.constants.keys() != config.keys():
        raise ArchiveError(
            container.path, "the graph and the config of the constants list different constants"
        )
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
            raise DocumentError(
                "is a tensor in the graph and a C++ object in the config, or the reverse"
            ).within(name)
        program.constants[name] = reading.constant(stored, place)


class _Reading:
    """Read the record of each constant once, even if several names share it."""

    def __init__(self, container: Container, *, trust: bool) -> None:
        self._container = container
        self._trust = trust
        self._state_bytes = 0
        self._known: dict[tuple[StoredTensor | StoredObject, torch.device | MissingObject], Any] = {}

    def constant(self, stored: StoredTensor | StoredObject, place: Any) -> Any:
        """Return the constant that replaces `place`, which is a fake tensor or a `MissingObject`."""
        key = (stored, place if isinstance(place, MissingObject) else place.device)
        if key not in self._known:
            self._known[key] = (
                self._object(stored, place)
                if isinstance(stored, StoredObject)
                else _tensor(self._container, stored, place)
            )
        return self._known[key]

    def _object(self, stored: StoredObject, missing: MissingObject) -> torch.ScriptObject:
        """Create a C++ object. Untrusted files may only use classes from libraries that the user loaded."""
        container, record = self._container, f"data/constants/{stored.record}"
        name = class_of(missing.qualified_name)
        if is_class_of_torch(name) and not self._trust:
            what = f"an object of torch's own class {name}, {UNTRUSTED}"
            raise ArchiveError(container.path, what, record, is_trust_missing=True)
        with faults_named(container.path, record):
            refuse_unregistered_classes([name])  # Check this first, because reading the state takes memory.
            found = read_saved_object(container.record(record), container.limits)
            self._state_bytes += found.state_bytes
            if self._state_bytes > container.limits.state_bytes:
                raise DocumentError(f"the states of objects exceed {container.limits.state_bytes} bytes")
            if missing.qualified_name != qualified_name(found.class_name):
                raise DocumentError("has a different class in the graph")
            return found.made()


def _tensor(container: Container, stored: StoredTensor, fake: Any) -> torch.Tensor:
    """Return the real tensor if its device is the CPU, otherwise `fake` with the value attached."""
    record = f"data/constants/{stored.record}"
    dtype = getattr(torch, stored.dtype)
    if (stored.shape, dtype, len(stored.stride)) != (tuple(fake.shape), fake.dtype, fake.dim()):
        raise ArchiveError(container.path, "has a different shape or dtype in the graph", record)
    content = bytearray(container.record(record))
    needed = stored.needed_bytes
    if needed > len(content):
        raise ArchiveError(container.path, f"has {len(content)} bytes, but its tensor needs {needed}", record)
    with real_execution():
        if needed:
            flat = torch.frombuffer(content, dtype=dtype, count=needed // dtype.itemsize)
            value = flat.as_strided(stored.shape, stored.stride, stored.offset)
        else:
            value = torch.empty(stored.shape, dtype=dtype)
        if value.numel() > 1 and not any(stored.stride) and fake.is_contiguous():
            # A value that repeats one element, such as the initial value of a large state, takes no memory
            # before binding.
            remember_filled(fake, value.as_strided((), ()))
            return cast(torch.Tensor, fake)
    if fake.device.type == "cpu":
        return value
    set_constant_value(fake, value)
    held: torch.Tensor = fake
    return held
