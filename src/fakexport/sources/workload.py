"""What a model is asked to do in the call that is exported or run."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, Literal, cast, get_args

from fakexport.error import InvalidValue

WorkloadName = Literal["forward", "prefill", "decode", "train"]


@dataclass(frozen=True)
class Workload:
    """The call of a model that its program is.

    Args:
        name: `forward`: without a cache. `prefill`: reads a prompt and returns the cache. `decode`: reads one
            token and a cache, and returns the cache. `train`: as forward, with labels where the
            model takes them.
        batch: First size of the example inputs; 2, since `torch.export` fixes sizes of 0 and 1.
        context: Tokens that the model attends to in the example, those of the cache included.
        is_generated: Whether the program is to generate tokens: its cache is tensors by name, and as long as
            the context in every layer. Else prefill and decode are those of a plan, with the cache that the
            model has in memory.
        capacity: Tokens that a static cache holds; None for a cache that grows.
    """

    name: WorkloadName = "forward"
    batch: int = 2
    context: int = 16
    is_generated: bool = False
    capacity: int | None = None


FORWARD = Workload()

_AUTO = "auto"

ExportedWorkload = Literal["forward", "prefill", "decode"]


def exported_workload(
    name: str, dynamic: Any, capacity: int | None = None, *, has_inputs: bool = False
) -> tuple[Workload, Any]:
    """Return the call that is exported, and the dimensions that vary in its example.

    Args:
        name: `forward`, `prefill` or `decode`.
        dynamic: The dimensions that may vary: texts, or what torch takes. The lengths of prefill and decode
            always do; the batch does if it is named, or with `auto`.
        capacity: Tokens of a static cache; None for a cache that grows.
        has_inputs: Whether the caller passes example inputs.
    Raises:
        ValueError: another name; a capacity of forward, or one that is too small; prefill or decode with
            example inputs, or with what torch takes.
    """
    if name not in get_args(ExportedWorkload):
        known = ", ".join(get_args(ExportedWorkload))
        raise InvalidValue(f"the workload {name!r} cannot be exported: {known} can")
    if name == "forward":
        if capacity is not None:
            raise InvalidValue("--cache-length applies to --workload prefill, decode and generate")
        return FORWARD, dynamic
    if capacity is not None and capacity <= Workload.context + 1:
        raise InvalidValue(f"--cache-length {capacity}: the example needs {Workload.context + 2} or more")
    if has_inputs:
        raise InvalidValue(f"example inputs do not apply to --workload {name}, which derives them")
    texts = [dynamic] if isinstance(dynamic, str) else dynamic or []
    if not isinstance(texts, (list, tuple)) or not all(isinstance(text, str) for text in texts):
        raise InvalidValue(f"--workload {name} takes dynamic dimensions as text, such as 'auto'")
    # Where the batch of the example is 1, `torch.export` fixes it, and everything else may vary.
    is_batch_dynamic = any(text == _AUTO or text.partition("=")[0].endswith(".0") for text in texts)
    call = Workload(
        cast(WorkloadName, name), 2 if is_batch_dynamic else 1, is_generated=True, capacity=capacity
    )
    return call, [*(text for text in texts if text != _AUTO), _AUTO]
