"""Name the tensors of a branch or step that are views of one tensor, which torch's operators do not take."""

from __future__ import annotations

import re
from collections.abc import Iterator
from types import FunctionType

from fakexport._torch.fake_tensors import is_fake_tensor, storage_identity
from fakexport.capture import CaptureFailure

_ALIASED = re.compile(r"Input-to-input aliasing detected at nodes (\S+) and (\S+) in")
_WEIGHT = re.compile(r"_(?:parameters|buffers)_(\w+?)_$")


def aliased_repair(failure: CaptureFailure) -> str | None:
    """Return what to do about two operands of `torch.cond` or `torch.while_loop` that share memory."""
    found = next((match for text in failure.messages if (match := _ALIASED.search(text))), None)
    if found is None:
        return None
    weights = [f"self.{match[1]}" for node in found.groups() if (match := _WEIGHT.search(node))]
    names = weights if len(weights) == 2 else list(dict.fromkeys(_sharing(failure)))
    if len(names) < 2:
        return "give each tensor that the branches or steps read memory of its own, with `.clone()`"
    shown = ", ".join(f"`{name}`" for name in names[:-1]) + f" and `{names[-1]}`"
    return (
        f"give {shown} memory of their own, with `.clone()` where they are made: they are views of one "
        "tensor, and the branches or steps of a control-flow operator may not read two of those"
    )


def _sharing(failure: CaptureFailure) -> Iterator[str]:
    """Yield the local tensors that functions of the frame read and that share memory."""
    variables = failure.culprit_locals
    functions = [value for value in variables.values() if isinstance(value, FunctionType)]
    read = {name for function in functions for name in function.__code__.co_freevars}
    memories = {
        name: storage_identity(variables[name])
        for name in sorted(read & variables.keys())
        if is_fake_tensor(variables[name])
    }
    for name, memory in memories.items():
        if list(memories.values()).count(memory) > 1:
            yield name
