"""What the tensors of a call answer to the questions of conditions."""

from __future__ import annotations

import torch

from fakexport._torch.fake_tensors import storage_identity
from fakexport._torch.tensor_questions import has_property
from fakexport.conditions import Question


def answer_of(question: Question, tensor: torch.Tensor) -> int | float | bool:
    """Return the number or truth that a question asks of a tensor."""
    match question.kind:
        case "size":
            return int(tensor.shape[question.dim])
        case "stride":
            return int(tensor.stride(question.dim))
        case "offset":
            return int(tensor.storage_offset())
        case "storage":
            return storage_identity(tensor)
        case "storage_bytes":
            return tensor.untyped_storage().nbytes()
        case "value":
            value: int | float | bool = tensor.item()
            return value
    return has_property(tensor, question.kind)


def answer_text(question: Question, value: float) -> str:
    """Return an answer as the beginning of an error: `` `x` has size 3 in dimension 0``."""
    match question.kind:
        case "size":
            return f"`{question.input}` has size {value} in dimension {question.dim}"
        case "stride":
            return f"`{question.input}` has stride {value} in dimension {question.dim}"
        case "offset":
            return f"`{question.input}` begins at element {value} of its storage"
        case "value":
            return f"`{question.input}` is {value}"
    return f"{question} is {value}"
