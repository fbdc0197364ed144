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
        is_cache_kept: Whether the static cache is buffers that the program writes into.
    """

    name: WorkloadName = "forward"
    batch: int = 2
    context: int = 16
    is_generated: bool = False
    capacity: int | None = None
    is_cache_kept: bool = False


FORWARD = Workload()

_AUTO = "auto"
_LENGTH = "input_ids.1"

ExportedWorkload = Literal["forward", "prefill", "decode"]
CacheForm = Literal["inputs", "buffers"]


def exported_workload(
    name: str,
    dynamic: Any,
    capacity: int | None = None,
    cache_form: str = "inputs",
    *,
    has_inputs: bool = False,
) -> tuple[Workload, Any]:
    """Return the call that is exported, and the dimensions that vary in its example.

    Args:
        name: `forward`, `prefill` or `decode`.
        dynamic: The dimensions that may vary: texts, or what torch takes. The lengths of prefill and decode
            always do; the batch does if it is named, or with `auto`.
        capacity: Tokens of a static cache; None for a cache that grows.
        cache_form: `inputs`, which are outputs too, or `buffers` of the program.
        has_inputs: Whether the caller passes example inputs.
    Raises:
        ValueError: another name; a capacity of forward, or one that is too small; buffers without a capacity,
            or with a batch that varies; prefill or decode with example inputs, or with what torch takes.
    """
    if name not in get_args(ExportedWorkload):
        known = ", ".join(get_args(ExportedWorkload))
        raise InvalidValue(f"the workload {name!r} cannot be exported: {known} can")
    if cache_form not in get_args(CacheForm):
        raise InvalidValue(f"a cache is {' or '.join(get_args(CacheForm))}, not {cache_form!r}")
    is_kept = cache_form == "buffers"
    if is_kept and (capacity is None or name == "forward"):
        raise InvalidValue(
            "--cache-form buffers is a static cache: add --workload prefill, decode or generate and "
            "--cache-length N"
        )
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
    named = [text for text in texts if text.partition("=")[0].endswith(".0")]
    if is_kept and named:
        raise InvalidValue(f"--dynamic {named[0]}: a cache in buffers is for one sequence")
    is_batch_dynamic = not is_kept and (bool(named) or _AUTO in texts)
    call = Workload(
        cast(WorkloadName, name),
        2 if is_batch_dynamic else 1,
        is_generated=True,
        capacity=capacity,
        is_cache_kept=is_kept,
    )
    varying = [text for text in texts if text != _AUTO]
    if is_kept and name == "prefill" and not any(text.startswith(_LENGTH) for text in varying):
        varying.append(f"{_LENGTH}=1..{capacity}")  # ExecuTorch plans memory for the most.
    return call, [*varying, _AUTO]
