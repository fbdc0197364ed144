"""Run an ONNX file written by `compile_onnx` in ONNX Runtime."""

from __future__ import annotations

import os
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import torch

from fakexport.documents import DocumentError
from fakexport.error import first_line
from fakexport.files import read_file
from fakexport.program import plain_name
from fakexport.weights import (
    CheckpointSource,
    as_needed,
    fitting_weights,
    open_checkpoint,
    verified,
)

from ..artifact import DeployError
from ..signature import Signature
from ..weights_file import check_owner
from .compilation import LARGEST_BYTES, messages
from .description import KEY, Description

_ONLY_FATAL = 4
_UNKNOWN_OPERATOR = "NOT_IMPLEMENTED"


class OnnxArtifact:
    """An ONNX file in ONNX Runtime, on the CPU; `kept` is what the session refers to but does not own."""

    def __init__(self, name: str, description: Description, session: Any, kept: object) -> None:
        self._name = name
        self._description = description
        self._session = session
        self._kept = kept

    @property
    def signature(self) -> Signature:
        return self._description.signature

    def __call__(self, inputs: Mapping[str, torch.Tensor]) -> dict[str, torch.Tensor]:
        """Return the output tensors by name.

        Raises:
            UnsuitableInputs: before anything runs.
            DeployError: ONNX Runtime failed.
        """
        self.signature.check(inputs)
        feeds = {tensor.name: to_ort(inputs[tensor.name]) for tensor in self.signature.inputs}
        try:
            values = self._session.run_with_ort_values(self._description.outputs, feeds)
        except Exception as error:
            raise DeployError(f"{self._name}: ONNX Runtime: {first_line(error)}") from error
        names = [output.name for output in self.signature.outputs if output.is_tensor]
        return {name: from_ort(value) for name, value in zip(names, values, strict=True)}


def open_onnx(path: str | os.PathLike[str], *, checkpoint: CheckpointSource | None = None) -> OnnxArtifact:
    """Open an ONNX file with its weights: all of them, exactly, or not at all.

    The weights are passed to ONNX Runtime; it never opens a file that the model names.

    Args:
        path: A file that `compile_onnx` wrote.
        checkpoint: The weights, as for `bind`, also in the layout of the Hugging Face hub. Default: those
            inside, or in the safetensors file next to the model.
    Raises:
        DeployError: the file is damaged, refused, not written by fakexport, or without weights; the weights
            next to it belong to a different file; or ONNX Runtime cannot run it.
        CheckpointError, BindError: the checkpoint is refused, or does not fit.
        OSError: the file cannot be read.
    Warns:
        WeightsWarning: as for `bind`.
        ModuleNotFoundError: onnx or onnxruntime is not installed.
    """
    import onnxruntime

    file = Path(path)
    content = read_file(file, most_bytes=LARGEST_BYTES)
    model = read_model(content, str(file))
    description = _description(model, file)
    options = onnxruntime.SessionOptions()
    options.log_severity_level = _ONLY_FATAL  # What goes wrong is raised as well.
    options.intra_op_num_threads = torch.get_num_threads()  # Its own choice would be all processors.
    values = _weights(external_tensors(model, description, str(file)), description, file, checkpoint)
    if values:
        options.add_external_initializers(list(values), list(values.values()))
    try:
        # Without the fallback, which prints to stdout and tries the same again.
        session = onnxruntime.InferenceSession(
            content, options, providers=["CPUExecutionProvider"], enable_fallback=0
        )
        _check_names(session, description)
    except DeployError as error:
        raise DeployError(f"{file}: {error}") from None
    except Exception as error:
        reason = first_line(error)
        if _UNKNOWN_OPERATOR in reason:
            reason = f"no CPU kernel for an operator: {reason}"
        raise DeployError(f"{file}: ONNX Runtime rejects it: {reason}") from error
    return OnnxArtifact(file.name, description, session, values)


def _description(model: Any, file: Path) -> Description:
    texts = [entry.value for entry in model.metadata_props if entry.key == KEY]
    if len(texts) != 1:
        raise DeployError(
            f"{file} was not written by `fakexport compile`: it has no signature; run it with "
            "onnxruntime directly"
        )
    try:
        encoded = texts[0]  # protobuf leaves what is no UTF-8 as bytes.
        found = Description.from_json(encoded.encode() if isinstance(encoded, str) else encoded)
    except DocumentError as error:
        raise DeployError(f"{file}: its description is refused: {error}") from error
    if found.sealed(model) != found:
        raise DeployError(f"{file} is damaged, or was changed after `fakexport compile` wrote it")
    return found


def _weights(
    names: tuple[str, ...], description: Description, file: Path, checkpoint: CheckpointSource | None
) -> dict[str, Any]:
    """Return the values of ONNX Runtime for the weights that are not inside."""
    if description.place == "inside":
        if checkpoint is not None:
            raise DeployError(f"{file} contains its weights; compile with --weights beside to bind others")
        return {}
    beside = file.parent / description.file
    is_own = check_owner(file, beside, checkpoint, description.digest)
    if checkpoint is None:
        if not beside.exists():
            raise DeployError(f"{file} has no weights: {beside} is missing, and no checkpoint was passed")
        checkpoint = beside
    expected = description.expected
    opened = open_checkpoint(checkpoint)
    if not is_own:
        record = description.manifest.adapter
        opened = as_needed(opened, record, expected, name=file.name)
        if opened.adapters and (record is None or record.mode != "apart"):
            raise DeployError(
                f"{file}: merge the adapter before the program is compiled, with fakexport bind"
            )
    found = verified(expected, opened, name=file.name, recipes=description.manifest.recipes)
    row_major = {
        name: torch.empty(each.shape, dtype=each.dtype, device="meta") for name, each in expected.all.items()
    }
    bound = fitting_weights(expected, opened, found, row_major)
    return {name: to_ort(bound.tensors[name]) for name in names}


def _check_names(session: Any, description: Description) -> None:
    """Check that the description and the graph belong to the same program."""
    inputs = {value.name for value in session.get_inputs()}
    outputs = {value.name for value in session.get_outputs()}
    tensors = [output for output in description.signature.outputs if output.is_tensor]
    is_same = inputs == {tensor.name for tensor in description.signature.inputs}
    if not is_same or not outputs.issuperset(description.outputs) or len(tensors) != len(description.outputs):
        raise DeployError("its description belongs to a different graph")


def read_model(content: bytes, name: str) -> Any:
    """Return the bytes as a `ModelProto`.

    Raises:
        DeployError: they are not an ONNX model.
    """
    import onnx
    from google.protobuf.message import DecodeError

    try:
        model = onnx.ModelProto.FromString(content)
    except DecodeError as error:
        raise DeployError(f"{name} is not an ONNX file, or is damaged") from error
    if not model.HasField("graph"):
        raise DeployError(f"{name} is not an ONNX file: it has no graph")
    return model


def external_tensors(model: Any, description: Description, name: str) -> tuple[str, ...]:
    """Return the names of the weights that are not inside the file.

    ONNX lets any tensor name any file on the machine. Here each must be a weight as in the description, so
    that all of them are passed to ONNX Runtime and none is looked up.

    Raises:
        DeployError: something else is outside.
    """
    weights = [tensor for tensor in model.graph.initializer if _is_outside(tensor)]
    names = tuple(tensor.name for tensor in weights)
    if len(set(names)) != sum(map(_is_outside, messages(model, "TensorProto"))):
        raise DeployError(f"{name} refers to a file for something that is not a weight of its graph")
    expected = description.expected.all
    for tensor in weights:
        wanted = expected.get(tensor.name)
        if wanted is None:
            raise DeployError(f"{name} refers to a file for {tensor.name!r}, which is not in its description")
        shape = (*wanted.shape, 2) if wanted.dtype.is_complex else wanted.shape
        if tuple(tensor.dims) != shape or tensor.data_type != onnx_type(wanted.dtype):
            raise DeployError(
                f"{name} has the weight {tensor.name!r} with a different shape or dtype from its description"
            )
    return names


def _is_outside(tensor: Any) -> bool:
    return bool(tensor.data_location or tensor.external_data)


def onnx_type(dtype: torch.dtype) -> int:
    """Return ONNX's number for a dtype.

    Raises:
        DeployError: ONNX does not support it.
    """
    from onnx_ir.tensor_adapters import from_torch_dtype

    try:
        return int(from_torch_dtype(dtype.to_real()))  # A complex number is a pair of real ones.
    except TypeError:
        raise DeployError(f"ONNX does not support the dtype {plain_name(dtype)}") from None


def to_ort(tensor: torch.Tensor) -> Any:
    """Return the tensor as an `OrtValue`: the same memory, where it is on the CPU and row-major."""
    from onnxruntime import OrtValue

    plain = tensor.detach().to("cpu").contiguous()
    if plain.is_complex():
        plain = torch.view_as_real(plain)
    if not (plain.is_floating_point() and (plain.itemsize == 1 or plain.dtype is torch.bfloat16)):
        return OrtValue.ortvalue_from_numpy(plain.numpy())
    # numpy has no dtype for it, so it goes as integers of the same width.
    bits = plain.view(torch.uint8 if plain.itemsize == 1 else torch.uint16).numpy()
    return OrtValue.ortvalue_from_numpy_with_onnx_type(bits, onnx_type(plain.dtype))


def from_ort(value: Any) -> torch.Tensor:
    """Return the value as a tensor of its own."""
    if "float8" in value.data_type() or "bfloat16" in value.data_type():
        return torch.utils.dlpack.from_dlpack(value).clone()
    return torch.from_numpy(value.numpy())
