"""List the operators that only an accelerator can run, and how fakexport handles each of them.

`python -m benchmarks.operator_coverage.device_only` prints this section of `docs/operators.md`.
"""

from __future__ import annotations

import re
from collections.abc import Iterator

import torch

from fakexport._torch.kernels.device_operators import KERNELS

__all__ = [
    "SECTION_TITLE",
    "device_only_operators",
    "device_only_section",
    "group_of",
    "operators_with_own_kernel",
]

SECTION_TITLE = "## Operators that only a device runs"

_KERNEL_KEYS = (
    *("CPU", "Meta", "SparseCPU", "SparseCsrCPU", "QuantizedCPU", "MkldnnCPU", "NestedTensorCPU"),
    *("CompositeImplicitAutograd", "CompositeExplicitAutograd", "CompositeExplicitAutogradNonFunctional"),
)
_OF_A_DEVICE = re.compile(r"^Meta: registered at \S*/native/(?:cudnn|miopen|cuda|mps)/", re.MULTILINE)
_OWN = "fakexport has a fake kernel, with the shapes of the CUDA kernel"
# Pattern of names without `aten::` -> how fakexport handles them.
_GROUPS: tuple[tuple[str, str], ...] = (
    (
        r"_?(cudnn|miopen)_ctc_loss",
        "not in programs: `ctc_loss` has one kernel for all devices, and the program contains `ctc_loss`",
    ),
    (
        r"_?(cudnn_|miopen_|mps_|lstm_mps|conv_depthwise)|max_pool2d_backward",
        "not in programs: only a device's kernel of `conv2d`, `lstm`, `grid_sampler` and others calls it; "
        "the program contains the calling operator",
    ),
    (r"batch_norm_", "FE401: `SyncBatchNorm` in training, with more than one process"),
    (r"_nested_", "not in programs: torch's Python class for nested tensors implements it"),
    (
        r"_cslt_|_(to_)?sparse_semi_structured|_mixed_dtypes_linear|_scaled_grouped_mm_v2|_triton_|_spsolve",
        "FE401 if the model calls it: you must write a fake kernel",
    ),
    (r"record_stream|_copy_from", "not in programs: bookkeeping of a device, without a result"),
)


def device_only_operators() -> tuple[str, ...]:
    """Return the names of ATen operators that have no CPU, meta or composite kernel.

    Only an accelerator can run them, so fake mode cannot. Meta kernels that exist only in a build for an
    accelerator are ignored, so the result is the same for every build.
    """
    names = (name for name in torch._C._dispatch_get_all_op_names() if name.startswith("aten::"))
    return tuple(sorted(name for name in names if not _has_kernel(name)))


def _has_kernel(name: str) -> bool:
    keys = [key for key in _KERNEL_KEYS if torch._C._dispatch_has_kernel_for_dispatch_key(name, key)]
    return bool(keys) and not (keys == ["Meta"] and _OF_A_DEVICE.search(torch._C._dispatch_dump(name)))


def operators_with_own_kernel() -> tuple[str, ...]:
    """Return the names of the operators that fakexport registers kernels for."""
    return tuple(sorted(operator.name() for operator in KERNELS))


def group_of(operator: str) -> str | None:
    """Return how fakexport handles an operator, such as `aten::record_stream`; None if not listed."""
    if operator in operators_with_own_kernel():
        return _OWN
    name = operator.removeprefix("aten::")
    return next((text for pattern, text in _GROUPS if re.match(pattern, name)), None)


def device_only_section() -> str:
    """Return the section of the page, with a final newline."""
    return "\n".join([SECTION_TITLE, "", *_lines()]) + "\n"


def _lines() -> Iterator[str]:
    names = sorted({*device_only_operators(), *operators_with_own_kernel()})
    count = len(device_only_operators())
    yield f"{count} of torch's own operators run only on a device: they have neither a CPU kernel,"
    yield "nor a kernel for fake tensors, nor a decomposition into other operators. The list comes from the"
    version = torch.__version__.partition("+")[0]
    yield f"dispatcher's table of torch {version}. A test fails if a new torch has others."
    yield ""
    yield "| how fakexport handles it | operators |"
    yield "| --- | --- |"
    groups = {name: group_of(name) for name in names}
    for group in dict.fromkeys((_OWN, *(text for _, text in _GROUPS), None)):
        found = [f"`{name.removeprefix('aten::')}`" for name in names if groups[name] == group]
        if found:
            yield f"| {group or 'not known'} | {' '.join(found)} |"


if __name__ == "__main__":
    print(device_only_section(), end="")
