"""The tensors of a program as records of an archive, and the configs that say which record is whose."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field

import torch
from torch.export import ExportedProgram

from fakexport.capture import UnboundConstant
from fakexport.fake import UnreplayableRead, is_fake, value_of
from fakexport.program.tensor_identity import tensor_identity

from .manifest import Location, TensorEntry, UnboundName
from .new_container import Content, Streamed
from .value_encoder import Json, ValueEncoder

__all__ = ["UNBOUND", "Payload", "constants_payload", "weights_payload"]

UNBOUND = "unbound__bind_the_weights_first_with_fakexport"
"""The record of a weight that is not there. Stock torch says its name when it cannot find it."""

_CHUNK_BYTES = 16 * 2**20


@dataclass
class Payload:
    """Tensors of one kind, ready to be written.

    Args:
        config: torch's `PayloadConfig` as JSON: which record is whose, and how it looks.
        records: The content of each record, by name in the archive.
        tensors: Descriptions for the manifest, tied names together.
        unbound: Constants without a value.
        names_with_data, names_without_data: Which names have data.
    """

    config: dict[str, Json] = field(default_factory=dict)
    records: dict[str, Content] = field(default_factory=dict)
    tensors: list[TensorEntry] = field(default_factory=list)
    unbound: list[UnboundName] = field(default_factory=list)
    names_with_data: list[str] = field(default_factory=list)
    names_without_data: list[str] = field(default_factory=list)


def weights_payload(program: ExportedProgram) -> Payload:
    """The parameters and persistent buffers of a program; fake ones are described and have no record."""
    payload = Payload()
    parameters = set(program.graph_signature.parameters)
    groups: dict[object, list[str]] = {}
    for name, tensor in program.state_dict.items():
        groups.setdefault(tensor_identity(tensor), []).append(name)
    for index, names in enumerate(groups.values()):
        tensor = program.state_dict[names[0]]
        is_parameter = any(name in parameters for name in names) or isinstance(tensor, torch.nn.Parameter)
        record = UNBOUND if is_fake(tensor) else f"weight_{index}"
        described = _add(payload, names, tensor, None if is_fake(tensor) else tensor, record, is_parameter)
        location = None
        if not is_fake(tensor):
            length = _extent(tensor) * tensor.itemsize
            location = Location(f"data/weights/{record}", 0, length)
            payload.records[f"data/weights/{record}"] = _content(tensor)
        payload.tensors.append(
            TensorEntry(
                name=names[0],
                aliases=tuple(sorted(names[1:])),
                shape=tuple(tensor.shape),
                stride=tuple(tensor.stride()),
                storage_offset=described,
                dtype=str(tensor.dtype).removeprefix("torch."),
                device=str(tensor.device),
                is_parameter=is_parameter,
                requires_grad=tensor.requires_grad,
                persistent=True,
                source=names[0],
                location=location,
            )
        )
    order = {name: index for index, name in enumerate(program.state_dict)}
    payload.config = dict(sorted(payload.config.items(), key=lambda item: order[item[0]]))
    return payload


def constants_payload(program: ExportedProgram, reasons: Sequence[UnboundConstant] = ()) -> Payload:
    """The constants of a program with their values; one without a value is named and has no record.

    Args:
        program: Constants that are fakes have the value that `fake.value_of` gives.
        reasons: Why some have none, as `capture` found out.
    Raises:
        ValueError: a constant is no tensor.
    """
    payload = Payload()
    known = {constant.name: constant for constant in reasons}
    groups: dict[object, list[str]] = {}
    for name, constant in program.constants.items():
        if not isinstance(constant, torch.Tensor):
            raise ValueError(f"the constant {name} is a {type(constant).__name__}; only tensors can be saved")
        groups.setdefault(tensor_identity(constant), []).append(name)
    for index, names in enumerate(groups.values()):
        constant = program.constants[names[0]]
        try:
            value = value_of(constant)
        except UnreplayableRead as error:
            payload.unbound.extend(_unbound(name, known.get(name), error.reason) for name in names)
            _add(payload, names, constant, None, f"tensor_{UNBOUND}", False)
            continue
        _add(payload, names, constant, value, f"tensor_{index}", False)
        payload.records[f"data/constants/tensor_{index}"] = _content(value)
    order = {name: index for index, name in enumerate(program.constants)}
    payload.config = dict(sorted(payload.config.items(), key=lambda item: order[item[0]]))
    return payload


def _unbound(name: str, constant: UnboundConstant | None, reason: str) -> UnboundName:
    if constant is None:
        return UnboundName(name, "unknown", reason)
    return UnboundName(name, constant.reason, constant.detail, constant.weight, constant.operator)


def _add(
    payload: Payload,
    names: Sequence[str],
    like: torch.Tensor,
    data: torch.Tensor | None,
    record: str,
    is_parameter: bool,
) -> int:
    """Adds the names of one tensor to the config; its storage offset in the record."""
    meta = ValueEncoder().tensor(like)
    offset = int(like.storage_offset())
    if data is not None:
        offset = 0  # The record begins with the tensor's first element.
        meta["strides"] = [{"as_int": stride} for stride in data.stride()]
        meta["storage_offset"] = {"as_int": offset}
    for name in names:
        payload.config[name] = {
            "path_name": record,
            "is_param": is_parameter,
            "use_pickle": False,
            "tensor_meta": meta,
        }
        (payload.names_without_data if data is None else payload.names_with_data).append(name)
    return offset


def _extent(tensor: torch.Tensor) -> int:
    """Elements from the first to the last."""
    if tensor.numel() == 0:
        return 0
    return 1 + sum((size - 1) * stride for size, stride in zip(tensor.shape, tensor.stride(), strict=True))


def _content(tensor: torch.Tensor) -> Streamed:
    """The bytes of a real tensor, from its first to its last element, read when they are written."""
    length = _extent(tensor) * tensor.itemsize

    def pieces() -> Iterator[memoryview]:
        flat = tensor.detach().as_strided((_extent(tensor),), (1,), tensor.storage_offset()).cpu()
        raw: memoryview = flat.view(torch.uint8).numpy().data
        for start in range(0, length, _CHUNK_BYTES):
            yield raw[start : start + _CHUNK_BYTES]

    return Streamed(length, _Once(pieces))


class _Once:
    """An iterable that begins when it is asked to: a mapped weight is not touched before."""

    def __init__(self, make: Callable[[], Iterator[memoryview]]) -> None:
        self._make = make

    def __iter__(self) -> Iterator[memoryview]:
        return self._make()
