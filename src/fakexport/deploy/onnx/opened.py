"""Run an ONNX file written by `compile_onnx` in ONNX Runtime."""

from __future__ import annotations

import os
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import torch

from fakexport.archive.weights import CheckpointSource, as_needed, open_checkpoint
from fakexport.error import first_line
from fakexport.exporting.program import plain_name
from fakexport.files import read_file
from fakexport.files.documents import DocumentError

from ..artifact import DeployError
from ..signature import Signature
from ..weights_file import check_owner, fitted_weights
from .compilation import LARGEST_BYTES, messages
from .description import KEY, Description

_ONLY_FATAL = 4
_UNKNOWN_OPERATOR = "NOT_IMPLEMENTED"


class OnnxArtifact:
    """An ONNX file in ONNX Runtime, on the CPU. `kept` keeps memory alive that the session uses."""

    def __init__(self, name: str, description: Description, session: Any, kept: object) -> None:
        self._name = name
        self._description = description
        self._session = session
        self._kept = kept

    @property
    def signature(self) -> Signature:
        return self._description.signature

    def __call__(self, inputs: Mapping[str, torch.Tensor]) -> dict[str, torch.Tensor]:
        """Run the model, and return its output tensors by name."""
        self.signature.check(inputs)
        feeds = {tensor.name: to_ort(inputs[tensor.name]) for tensor in self.signature.inputs}
        try:
            values = self._session.run_with_ort_values(self._description.outputs, feeds)
        except Exception as error:
            raise DeployError(f"{self._name}: ONNX Runtime: {first_line(error)}") from error
        names = [output.name for output in self.signature.outputs if output.is_tensor]
        return {name: from_ort(value) for name, value in zip(names, values, strict=True)}


def open_onnx(path: str | os.PathLike[str], *, checkpoint: CheckpointSource | None = None) -> OnnxArtifact:
    """Open an ONNX file and bind all of its weights, or raise an error.

    fakexport passes the weights to ONNX Runtime, so ONNX Runtime never opens a file that the model refers to.

    Args:
        path: A file that `compile_onnx` wrote.
        checkpoint: As for `bind`. Default: the weights in the model, or in the safetensors file next to it.

    Raises:
        DeployError: The file is damaged, rejected, not written by fakexport, or without weights; the weights
            file belongs to a different model; or ONNX Runtime cannot run the model.
        CheckpointError, BindError: The checkpoint is rejected, or does not fit.
        OSError: The file cannot be read.

    Warns:
        WeightsWarning: As for `bind`.
    """
    import onnxruntime

    file = Path(path)
    content = read_file(file, most_bytes=LARGEST_BYTES)
    model = read_model(content, str(file))
    description = _description(model, file)
    options = onnxruntime.SessionOptions()
    options.log_severity_level = _ONLY_FATAL  # Errors are also raised as exceptions.
    options.intra_op_num_threads = torch.get_num_threads()  # ONNX Runtime's default is all processors.
    values = _weights(external_tensors(model, description, str(file)), description, file, checkpoint)
    if values:
        options.add_external_initializers(list(values), list(values.values()))
    try:
        # Disable the fallback: it prints to stdout, and only tries the same provider again.
        session = onnxruntime.InferenceSession(
            content, options, providers=["CPUExecutionProvider"], enable_fallback=0
        )
        _check_names(session, description)
    except DeployError as error:
        raise DeployError(f"{file}: {error}") from None
    except Exception as error:
        reason = first_line(error)
        if _UNKNOWN_OPERATOR in reason:
            reason = f"there is no CPU kernel for an operator: {reason}"
        raise DeployError(f"{file}: ONNX Runtime rejects the model: {reason}") from error
    return OnnxArtifact(file.name, description, session, values)


def _description(model: Any, file: Path) -> Description:
    texts = [entry.value for entry in model.metadata_props if entry.key == KEY]
    if len(texts) != 1:
        raise DeployError(
            f"{file} was not written by `fakexport compile`: it has no signature; run it with "
            "onnxruntime directly"
        )
    try:
        encoded = texts[0]  # protobuf returns invalid UTF-8 as bytes.
        found = Description.from_json(encoded.encode() if isinstance(encoded, str) else encoded)
    except DocumentError as error:
        raise DeployError(f"{file}: its fakexport metadata is invalid: {error}") from error
    if found.sealed(model) != found:
        raise DeployError(f"{file} is damaged, or was changed after `fakexport compile` wrote it")
    return found


def _weights(
    names: tuple[str, ...], description: Description, file: Path, checkpoint: CheckpointSource | None
) -> dict[str, Any]:
    """Return the weights that are not inside the model, as ONNX Runtime values."""
    if description.place == "inside":
        if checkpoint is not None:
            raise DeployError(
                f"{file} contains its weights; compile with --weights beside to bind different weights"
            )
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
        if opened.adapters and (record is None or record.mode != "separate"):
            raise DeployError(
                f"{file}: merge the adapter with `fakexport bind` before you compile the program"
            )
    found = fitted_weights(expected, opened, name=file.name, recipes=description.manifest.recipes)
    return {name: to_ort(found[name]) for name in names}


def _check_names(session: Any, description: Description) -> None:
    """Check that the description and the graph have the same inputs and outputs."""
    inputs = {value.name for value in session.get_inputs()}
    outputs = {value.name for value in session.get_outputs()}
    tensors = [output for output in description.signature.outputs if output.is_tensor]
    is_same = inputs == {tensor.name for tensor in description.signature.inputs}
    if not is_same or not outputs.issuperset(description.outputs) or len(tensors) != len(description.outputs):
        raise DeployError("its fakexport metadata belongs to a different graph")


def read_model(content: bytes, name: str) -> Any:
    """Parse bytes as a `ModelProto`, or raise a `DeployError`."""
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

    In ONNX, any tensor can refer to any file on the machine. Here, each tensor that refers to a file must be
    a weight in the description. All such weights are passed to ONNX Runtime, so that it opens no file. Any
    other reference raises a `DeployError`.
    """
    weights = [tensor for tensor in model.graph.initializer if _is_outside(tensor)]
    names = tuple(tensor.name for tensor in weights)
    if len(set(names)) != sum(map(_is_outside, messages(model, "TensorProto"))):
        raise DeployError(
            f"{name} stores a tensor in another file, but only weights of the main graph may be stored there"
        )
    expected = description.expected.all
    for tensor in weights:
        wanted = expected.get(tensor.name)
        if wanted is None:
            raise DeployError(
                f"{name} stores {tensor.name!r} in another file, but its metadata does not list this tensor"
            )
        shape = (*wanted.shape, 2) if wanted.dtype.is_complex else wanted.shape
        if tuple(tensor.dims) != shape or tensor.data_type != onnx_type(wanted.dtype):
            raise DeployError(
                f"the weight {tensor.name!r} in {name} has a different shape or dtype than in its metadata"
            )
    return names


def _is_outside(tensor: Any) -> bool:
    return bool(tensor.data_location or tensor.external_data)


def onnx_type(dtype: torch.dtype) -> int:
    """Return the number that encodes a dtype in ONNX, or raise a `DeployError`."""
    from onnx_ir.tensor_adapters import from_torch_dtype

    try:
        return int(from_torch_dtype(dtype.to_real()))  # A complex number is stored as two real numbers.
    except TypeError:
        raise DeployError(f"ONNX does not support the dtype {plain_name(dtype)}") from None


def to_ort(tensor: torch.Tensor) -> Any:
    """Convert a tensor to an `OrtValue`. A row-major CPU tensor is not copied."""
    from onnxruntime import OrtValue

    plain = tensor.detach().to("cpu").contiguous()
    if plain.is_complex():
        plain = torch.view_as_real(plain)
    if not (plain.is_floating_point() and (plain.itemsize == 1 or plain.dtype is torch.bfloat16)):
        return OrtValue.ortvalue_from_numpy(plain.numpy())
    # numpy lacks these dtypes, so pass the bits as integers of the same width.
    bits = plain.view(torch.uint8 if plain.itemsize == 1 else torch.uint16).numpy()
    return OrtValue.ortvalue_from_numpy_with_onnx_type(bits, onnx_type(plain.dtype))


def from_ort(value: Any) -> torch.Tensor:
    """Convert an `OrtValue` to a new tensor."""
    if "float8" in value.data_type() or "bfloat16" in value.data_type():
        return torch.utils.dlpack.from_dlpack(value).clone()
    return torch.from_numpy(value.numpy())
