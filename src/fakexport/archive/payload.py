"""Store the tensors of programs as records of an archive, with configs that map names to records."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence

import torch
from torch.export import ExportedProgram

from fakexport.archive.codec.values import Json, ValueEncoder
from fakexport.archive.linked_files import Links
from fakexport.archive.manifest import Location, TensorEntry, extent
from fakexport.archive.saved_object import object_record
from fakexport.archive.shared_records import LINKED, UNBOUND, Payload
from fakexport.archive.stored_tensor import StoredObject
from fakexport.emulation.fake import is_fake
from fakexport.emulation.history import DataReadError, constant_value
from fakexport.error import InvalidValue
from fakexport.exporting.program import UnboundConstant, constants_read, names_by_tensor
from fakexport.files.container import Content, Streamed
from fakexport.files.documents import UnboundName

_CHUNK_BYTES = 16 * 2**20


def weights_payload(program: ExportedProgram, links: Links | None = None, *, first: int = 0) -> Payload:
    """Return the parameters and persistent buffers of a program.

    Fake weights, and weights that `links` finds in a linked file, get no record. `first` is the number in the
    name of the first record; earlier programs of the archive use smaller numbers.
    """
    state, parameters = program.state_dict, set(program.graph_signature.parameters)
    _refuse_sparse("weight", state)
    encoder = ValueEncoder()
    config: dict[str, Json] = {}
    records: dict[str, Content] = {}
    tensors: list[TensorEntry] = []
    for index, names in enumerate(names_by_tensor(state), first):
        tensor = state[names[0]]
        data = None if is_fake(tensor) else tensor
        is_parameter = any(name in parameters for name in names) or isinstance(tensor, torch.nn.Parameter)
        record = UNBOUND if data is None else f"weight_{index}"
        source, location = names[0], None
        if data is not None:
            content = _content(data)
            if links and (link := links.find(data, content.length, content.pieces)):
                record, (source, location) = LINKED, link
            else:
                location = Location(f"data/weights/{record}", 0, content.length)
                records[location.file] = content
        config |= dict.fromkeys(names, _described(encoder, tensor, data, record, is_parameter))
        tensors.append(
            TensorEntry(
                name=names[0],
                aliases=tuple(sorted(names[1:])),
                shape=tuple(tensor.shape),
                stride=tuple(tensor.stride()),
                storage_offset=int(tensor.storage_offset()) if data is None else 0,
                dtype=str(tensor.dtype).removeprefix("torch."),
                device=str(tensor.device),
                is_parameter=is_parameter,
                requires_grad=tensor.requires_grad,
                persistent=True,
                source=source,
                location=location,
            )
        )
    return Payload({name: config[name] for name in state}, records, tuple(tensors))


def constants_payload(
    program: ExportedProgram, reasons: Sequence[UnboundConstant] = (), *, first: int = 0
) -> Payload:
    """Return the constants of a program. Constants without a value get no record; `reasons` explains why.

    A C++ object gets a record with its state. Raises ValueError for other kinds of constants and for
    unsupported states.
    """
    constants = constants_read(program)
    objects = {name: c for name, c in constants.items() if isinstance(c, torch.ScriptObject)}
    tensors = {name: c for name, c in constants.items() if isinstance(c, torch.Tensor)}
    if other := sorted(constants.keys() - objects.keys() - tensors.keys()):
        kind = type(constants[other[0]]).__name__
        raise InvalidValue(f"the constant {other[0]} is a {kind}: only tensors and C++ objects can be saved")
    _refuse_sparse("constant", tensors)
    known = {reason.name: UnboundName.of(reason) for reason in reasons}
    encoder = ValueEncoder()
    config: dict[str, Json] = {}
    records: dict[str, Content] = {}
    unbound: list[UnboundName] = []
    for index, names in enumerate(_names_by_object(objects), first):
        stored = StoredObject(f"custom_obj_{index}")
        try:
            records[f"data/constants/{stored.record}"] = object_record(objects[names[0]])
        except ValueError as error:
            raise InvalidValue(f"the constant {names[0]} cannot be saved: {error}") from error
        config |= dict.fromkeys(names, stored.config)
    for index, names in enumerate(names_by_tensor(tensors), first):
        constant, record = tensors[names[0]], f"tensor_{index}"
        value = None
        try:
            value = constant_value(constant)
            records[f"data/constants/{record}"] = _content(value)
        except DataReadError as error:
            record = f"tensor_{UNBOUND}"
            unbound.extend(known.get(name) or UnboundName(name, "unknown", error.reason) for name in names)
        config |= dict.fromkeys(names, _described(encoder, constant, value, record, False))
    return Payload({name: config[name] for name in constants}, records, unbound=tuple(unbound))


def _refuse_sparse(kind: str, tensors: Mapping[str, torch.Tensor]) -> None:
    for name, tensor in tensors.items():
        if tensor.layout is not torch.strided:
            layout = str(tensor.layout).removeprefix("torch.")
            raise InvalidValue(
                f"the {kind} {name} has the layout {layout}: only strided tensors can be saved"
            )


def _names_by_object(objects: Mapping[str, torch.ScriptObject]) -> list[list[str]]:
    """Group the names of the same object by identity, because C++ classes may define their own `==`."""
    names: dict[int, list[str]] = {}
    for name, held in objects.items():
        names.setdefault(id(held), []).append(name)
    return list(names.values())


def _described(
    encoder: ValueEncoder, like: torch.Tensor, data: torch.Tensor | None, record: str, is_parameter: bool
) -> Json:
    """Return the entry for a tensor in the weights config of torch's archive format."""
    meta = encoder.tensor(like)
    if data is not None:  # The record begins with the tensor's first element.
        meta["strides"] = [encoder.integer(stride) for stride in data.stride()]
        meta["storage_offset"] = encoder.integer(0)
    return {"path_name": record, "is_param": is_parameter, "use_pickle": False, "tensor_meta": meta}


def _content(tensor: torch.Tensor) -> Streamed:
    """Return a real tensor's bytes, from its first to its last element. Writing the archive reads them."""
    pieces = _Pieces(tensor.detach())
    return Streamed(pieces.elements * tensor.itemsize, pieces)


class _Pieces:
    """The bytes of a tensor in chunks, which can be iterated over several times."""

    def __init__(self, tensor: torch.Tensor) -> None:
        self._tensor = tensor
        self.elements = extent(tensor.shape, tensor.stride())

    def __iter__(self) -> Iterator[memoryview]:
        tensor = self._tensor
        flat = tensor.as_strided((self.elements,), (1,), tensor.storage_offset()).cpu()
        raw: memoryview = flat.view(torch.uint8).numpy().data
        for start in range(0, len(raw), _CHUNK_BYTES):
            yield raw[start : start + _CHUNK_BYTES]
