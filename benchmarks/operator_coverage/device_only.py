"""The operators that only a device runs, and what becomes of each on a virtual one.

`python -m benchmarks.operator_coverage.device_only` prints this section of `docs/operators.md`.
"""

from __future__ import annotations

import re
from collections.abc import Iterator

import torch

from fakexport._torch.device_operators import device_only_operators, operators_with_own_kernel

__all__ = ["SECTION_TITLE", "device_only_section", "group_of"]

SECTION_TITLE = "## Operators that only a device runs"

_OWN = "fakexport has a fake kernel, with the shapes of the CUDA kernel"
# Pattern of names without `aten::` -> what becomes of them.
_GROUPS: tuple[tuple[str, str], ...] = (
    (
        r"_?(cudnn|miopen)_ctc_loss",
        "not met: `ctc_loss` takes the kernel of all devices, and the program names `ctc_loss`",
    ),
    (
        r"_?(cudnn_|miopen_|mps_|lstm_mps|conv_depthwise)|max_pool2d_backward",
        "not met: a device's kernel of `conv2d`, `lstm`, `grid_sampler` and others calls it, or a build of "
        "torch for that device; the program names the operator that calls it",
    ),
    (r"batch_norm_", "FE401: `SyncBatchNorm` in training, with more than one process"),
    (r"_nested_", "not met: torch's Python class of nested tensors answers it"),
    (
        r"_cslt_|_(to_)?sparse_semi_structured|_mixed_dtypes_linear|_scaled_grouped_mm_v2|_triton_|_spsolve",
        "FE401 where the model calls it: it needs a fake kernel from you",
    ),
    (r"record_stream|_copy_from", "not met in a program: bookkeeping of a device, without a result"),
)


def group_of(operator: str) -> str | None:
    """What becomes of an operator, such as `aten::_thnn_fused_gru_cell`; None where that is not written."""
    if operator in operators_with_own_kernel():
        return _OWN
    name = operator.removeprefix("aten::")
    return next((text for pattern, text in _GROUPS if re.match(pattern, name)), None)


def device_only_section() -> str:
    """The section of the page; it ends in one line end."""
    return "\n".join([SECTION_TITLE, "", *_lines()]) + "\n"


def _lines() -> Iterator[str]:
    names = sorted({*device_only_operators(), *operators_with_own_kernel()})
    count = len(device_only_operators())
    yield f"Of torch's own operators, {count} have neither a kernel for the CPU nor one"
    yield "for fakes nor a composition of others: only a device runs them. Listed by the dispatcher's own"
    yield f"table (torch {torch.__version__.partition('+')[0]}); a test fails when a new torch has others."
    yield ""
    yield "| what becomes of it | operators |"
    yield "| --- | --- |"
    groups = {name: group_of(name) for name in names}
    for group in dict.fromkeys((_OWN, *(text for _, text in _GROUPS), None)):
        found = [f"`{name.removeprefix('aten::')}`" for name in names if groups[name] == group]
        if found:
            yield f"| {group or 'not known'} | {' '.join(found)} |"


if __name__ == "__main__":
    print(device_only_section(), end="")
