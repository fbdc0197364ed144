"""Workloads: the kinds of model calls that can be exported or run."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, Literal, cast, get_args

from fakexport.error import InvalidValue

WorkloadName = Literal["forward", "prefill", "decode", "chunk", "train"]


@dataclass(frozen=True)
class Workload:
    """The kind of model call that is exported as a program.

    Args:
        name: `forward`: without a cache. `prefill`: reads a prompt and returns the cache. `decode`: reads one
            token and a cache, and returns the cache. `chunk`: reads one or more tokens and a cache that may
            be empty, and returns the cache and the scores of all these tokens. `train`: like `forward`, with
            labels if the model accepts them.
        batch: Batch size of the example inputs. The default is 2, because `torch.export` specializes on sizes
            of 0 and 1.
        context: Number of tokens that the model attends to in the example, including those in the cache.
        is_generated: Whether the program is for generation. If true, its cache is passed as named tensors,
            and has the length of the context in every layer. If false, prefill and decode are for a memory
            plan, and use the cache that the model itself creates.
        capacity: Number of tokens in a static cache, or None for a growing cache.
        is_cache_kept: Whether the static cache is stored in buffers that the program writes.
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

ExportedWorkload = Literal["forward", "prefill", "decode", "chunk"]
CacheForm = Literal["inputs", "buffers"]


def exported_workload(
    name: str,
    dynamic: Any,
    capacity: int | None = None,
    cache_form: str = "inputs",
    *,
    has_inputs: bool = False,
) -> tuple[Workload, Any]:
    """Return the workload to export, and its dynamic dimensions.

    Args:
        name: `forward`, `prefill`, `decode` or `chunk`.
        dynamic: The dynamic dimensions, as strings or as torch's `dynamic_shapes`. The lengths of generation
            calls are always dynamic. Their batch is dynamic if it is listed or if `auto` is passed.
        capacity: Number of tokens in a static cache, or None for a growing cache.
        cache_form: `inputs`: the cache tensors are inputs and outputs. `buffers`: they are buffers of the
            program.
        has_inputs: Whether the caller passes example inputs.
    Raises:
        ValueError: the name is unknown; a capacity is passed for forward, or is too small; buffers are
            requested without a capacity or with a dynamic batch; or prefill or decode is requested with
            example inputs or with torch's `dynamic_shapes`.
    """
    if name not in get_args(ExportedWorkload):
        known = ", ".join(get_args(ExportedWorkload))
        raise InvalidValue(f"workload {name!r} cannot be exported; the supported ones are {known}")
    if cache_form not in get_args(CacheForm):
        raise InvalidValue(f"cache_form must be {' or '.join(get_args(CacheForm))}, not {cache_form!r}")
    is_kept = cache_form == "buffers"
    if is_kept and (capacity is None or name == "forward"):
        raise InvalidValue(
            "--cache-form buffers requires a static cache: add --workload prefill, decode or "
            "generate and --max-cache-len N"
        )
    if name == "forward":
        if capacity is not None:
            raise InvalidValue("--max-cache-len requires --workload prefill, decode or generate")
        return FORWARD, dynamic
    if name == "chunk" and capacity is not None:
        raise InvalidValue(
            "--workload chunk has a growing cache: remove --max-cache-len, or use --workload generate"
        )
    if capacity is not None and capacity <= Workload.context + 1:
        raise InvalidValue(
            f"--max-cache-len {capacity} is too small for the example inputs: use at least "
            f"{Workload.context + 2}"
        )
    if has_inputs:
        raise InvalidValue(f"example inputs cannot be combined with --workload {name}, which derives them")
    texts = [dynamic] if isinstance(dynamic, str) else dynamic or []
    if not isinstance(texts, (list, tuple)) or not all(isinstance(text, str) for text in texts):
        raise InvalidValue(f"--workload {name} requires dynamic dimensions as text, such as 'auto'")
    # If the batch of the example is 1, `torch.export` specializes on it; all other sizes can be dynamic.
    named = [text for text in texts if text.partition("=")[0].endswith(".0")]
    if is_kept and named:
        raise InvalidValue(f"--dynamic {named[0]}: with --cache-form buffers, the batch size is always 1")
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
        varying.append(f"{_LENGTH}=1..{capacity}")  # ExecuTorch plans memory for the maximum.
    return call, [*varying, _AUTO]
