"""Step: compare the attention kernel that torch chooses, and the layout of results, with fakexport."""

from __future__ import annotations

import itertools
import json
from collections import Counter
from collections.abc import Iterator
from contextlib import AbstractContextManager, ExitStack
from typing import Any, NamedTuple

import torch
import torch.nn.functional as F
from torch._subclasses.fake_tensor import FakeTensorMode

from benchmarks.gpu_proof.parts import Part, run_parts
from benchmarks.gpu_proof.run import Run

_CHOICES = {-1: "error", 0: "math", 1: "flash", 2: "efficient", 3: "cudnn", 4: "overrideable"}
_DTYPES = ("float16", "bfloat16", "float32")
_HEADS = ((8, 8), (8, 2), (12, 12))
_DIMS = (
    *((64, 64), (72, 72), (80, 80), (100, 100), (128, 128)),
    *((192, 128), (192, 192), (256, 256), (20, 20), (512, 512)),
)
_LENGTHS = ((128, 128), (1, 77), (77, 77), (16, 1), (1, 1))
_MASKS = ("none", "causal", "bool4", "float4", "row4", "float2", "head4", "odd")
_DROPOUTS = (0.0, 0.1, 0.25)
_BATCH = 2
_SAMPLED = 97
_SHOWN = 6
_TIMED = 50


class Case(NamedTuple):
    """One call of `scaled_dot_product_attention`."""

    dtype: str
    heads: tuple[int, int]  # Of the query, and of key and value.
    dims: tuple[int, int]  # Of query and key, and of the value.
    lengths: tuple[int, int]  # Of the query, and of key and value.
    mask: str
    requires_grad: bool
    is_transposed: bool
    dropout: float


def cases() -> Iterator[Case]:
    grad = (False, True)
    for dtype, *other in itertools.product(_DTYPES, _HEADS, _DIMS, _LENGTHS, _MASKS, grad, grad, _DROPOUTS):
        case = Case(dtype, *other)
        if not case.dropout or (case.mask in ("none", "causal") and not case.is_transposed):
            yield case


def step(run: Run) -> None:
    """Compare chosen kernels and layouts."""
    parts = [Part("attention", "choices", dtype, limit_s=45) for dtype in _DTYPES]
    parts += [Part("attention", "emulated_layouts", is_hidden=True, limit_s=45)]
    if not run.is_pretend:
        parts += [Part("attention", "real_layouts", limit_s=90)]
        parts += [Part("attention", "strided_mask", dtype, limit_s=45) for dtype in _DTYPES]
    run_parts(run, parts)
    paths = [run.work / f"layouts-{side}.json" for side in ("real", "emulated")]
    if run.is_pretend or not all(path.exists() for path in paths):
        return
    real, own = (json.loads(path.read_text()) for path in paths)
    differing = [row for row in zip(_sample(), real, own, strict=True) if row[1] != row[2]]
    run.record(
        "attention", "layouts", ok=not differing, cases=len(real), different=len(differing),
        first=differing[:_SHOWN],
    )  # fmt: skip


def choices(run: Run, dtype: str) -> dict[str, Any]:
    """Compare the chosen kernel of every call in one dtype. Without a GPU, count fakexport's choices."""
    from fakexport._torch.emulation.attention_backend import Attention, AttentionDevice, choose_backend

    capability = (9, 0) if run.is_pretend else torch.cuda.get_device_capability(0)
    differing: dict[str, list[Case]] = {}
    counts: Counter[str] = Counter()
    for case in (case for case in cases() if case.dtype == dtype):
        query, key, value, mask = tensors_of(case, run.device)
        is_causal, is_grouped = case.mask == "causal", len(set(case.heads)) > 1
        given = (query, key, value, mask, case.dropout, is_causal)
        own = choose_backend(Attention(*given, AttentionDevice("cuda", capability), is_grouped))
        chosen = own
        if not run.is_pretend:
            chosen = _choice_of_torch(*given, is_grouped=is_grouped)
        counts[chosen] += 1
        if chosen != own:
            differing.setdefault(f"torch {chosen}, fakexport {own}", []).append(case)
    found = {"cases": counts.total(), "counts": dict(counts)}
    if run.is_pretend:
        return found
    shown = {kind: [len(rows), rows[:_SHOWN]] for kind, rows in differing.items()}
    return {"ok": not differing, **found, "different": shown}


def _choice_of_torch(*given: Any, is_grouped: bool) -> str:
    try:
        return _CHOICES[torch._fused_sdp_choice(*given, scale=None, enable_gqa=is_grouped)]
    except RuntimeError as error:
        return " ".join(f"RuntimeError: {error}".split())[:80]


def tensors_of(
    case: Case, device: str
) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor, torch.Tensor | None]:
    """Return the query, key, value and mask of a case."""
    dtype = getattr(torch, case.dtype)
    (heads, kv_heads), (rows, columns) = case.heads, case.lengths

    def made(count: int, length: int, size: int) -> torch.Tensor:
        options = {"dtype": dtype, "device": device, "requires_grad": case.requires_grad}
        if case.is_transposed:
            return torch.empty(_BATCH, length, count, size, **options).transpose(1, 2)
        return torch.empty(_BATCH, count, length, size, **options)

    query = made(heads, rows, case.dims[0])
    key, value = made(kv_heads, columns, case.dims[0]), made(kv_heads, columns, case.dims[1])
    return query, key, value, _mask(case, dtype, device)


def _mask(case: Case, dtype: torch.dtype, device: str) -> torch.Tensor | None:
    rows, columns = case.lengths
    if case.mask == "odd":  # A slice of a wider mask: rows that are not aligned.
        return torch.zeros(_BATCH, 1, rows, columns + 3, dtype=dtype, device=device)[..., :columns]
    shapes = {
        "bool4": (_BATCH, 1, rows, columns), "float4": (_BATCH, 1, rows, columns),
        "row4": (_BATCH, 1, 1, columns), "float2": (rows, columns),
        "head4": (_BATCH, case.heads[0], rows, columns),
    }  # fmt: skip
    if case.mask not in shapes:
        return None
    kind = torch.bool if case.mask in ("bool4", "row4") else dtype
    return torch.ones(shapes[case.mask], dtype=kind, device=device)


def _sample() -> list[Case]:
    return list(cases())[::_SAMPLED]


def real_layouts(run: Run, _: str) -> None:
    _write_layouts(run, "real")


def emulated_layouts(run: Run, _: str) -> dict[str, Any]:
    from fakexport.emulation.devices import emulate

    found = _write_layouts(run, "emulated", emulate(run.profile), FakeTensorMode())
    return {"cases": len(found), "errors": sum(isinstance(layout, str) for layout in found)}


def _write_layouts(run: Run, side: str, *devices: AbstractContextManager[Any]) -> list[Any]:
    """Write the shape, strides and dtype of each sampled call's result, or the class of its error."""
    with ExitStack() as stack:
        for device in devices:
            stack.enter_context(device)
        found = [_layout(case) for case in _sample()]
    (run.work / f"layouts-{side}.json").write_text(json.dumps(found))
    return found


def _layout(case: Case) -> Any:
    *tensors, mask = tensors_of(case, "cuda:0")
    is_causal, is_grouped = case.mask == "causal", len(set(case.heads)) > 1
    try:
        out = F.scaled_dot_product_attention(*tensors, mask, case.dropout, is_causal, enable_gqa=is_grouped)
    except Exception as error:
        return type(error).__name__
    return [list(out.shape), list(out.stride()), str(out.dtype)]


def strided_mask(run: Run, dtype: str) -> dict[str, Any]:
    """Time the attention of a ViT without a mask, with a contiguous one, and with an expanded one (FE507)."""
    query, key, value = (
        torch.randn(8, 12, 197, 64, dtype=getattr(torch, dtype), device=run.device) for _ in range(3)
    )
    expanded = torch.ones((), dtype=torch.bool, device=run.device).expand(8, 1, 197, 197)
    masks = {"none": None, "contiguous": expanded.contiguous(), "expanded": expanded}
    found: dict[str, Any] = {}
    for name, mask in masks.items():
        chosen = _CHOICES[torch._fused_sdp_choice(query, key, value, mask, 0.0, False, scale=None)]
        F.scaled_dot_product_attention(query, key, value, mask)
        torch.cuda.reset_peak_memory_stats()
        before = torch.cuda.memory_allocated()
        start, end = (torch.cuda.Event(enable_timing=True) for _ in range(2))
        start.record()
        for _ in range(_TIMED):
            F.scaled_dot_product_attention(query, key, value, mask)
        end.record()
        torch.cuda.synchronize()
        found[name] = {
            "kernel": chosen,
            "ms": round(start.elapsed_time(end) / _TIMED, 4),
            "bytes": torch.cuda.max_memory_allocated() - before,
        }
    return found


PARTS = {
    "strided_mask": strided_mask,
    "choices": choices,
    "real_layouts": real_layouts,
    "emulated_layouts": emulated_layouts,
}
