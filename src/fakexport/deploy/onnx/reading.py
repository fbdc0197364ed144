"""Read an untrusted ONNX file before ONNX Runtime sees it."""

from __future__ import annotations

from typing import Any

from ..artifact import DeployError
from .description import Description
from .messages import messages
from .ort_values import onnx_type


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
