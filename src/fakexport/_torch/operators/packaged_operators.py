"""Which operators torch and fakexport define, without importing torch. Seen on torch 2.11 to 2.13.

Source: `torchgen/packaged/ATen/native/native_functions.yaml` in the wheel of torch, from which torch itself
generates its registrations of ATen operators.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from functools import cache
from importlib.util import find_spec
from pathlib import Path

TORCH_NAMESPACES = frozenset(
    (
        *("_c10d_functional", "_c10d_functional_autograd", "_dtensor", "_native", "_native_aot"),
        *("_quantized", "_test", "aten", "c10d", "c10d_functional", "coor", "cuda", "debug_mode_ops"),
        *("debugprims", "device_mesh", "export", "flex_gemm", "flex_lib", "fsdp", "inductor"),
        *("inductor_prims", "mkl", "mkldnn", "mkldnn_prepacked", "onednn", "onnx", "onnx_symbolic"),
        *("prepacked", "prim", "prims", "profiler", "quantization", "quantized"),
        *("quantized_decomposed", "rngprims", "sparse", "static_runtime", "streams", "symm_mem"),
    )
)
"""Namespaces of operators of torch and its submodules. All other namespaces belong to libraries."""

_OWN_NAMESPACES = frozenset(("fbgemm", "finegrained_fp8", "mxfp4", "transformers"))
_FP8 = ("w8a8_block_dynamic_fp8_matmul", "w4a8_mx_dynamic_fp4_matmul", "w8a8_mx_dynamic_fp8_matmul")
ALWAYS_THERE = frozenset(
    (
        *(f"torch.ops.finegrained_fp8.{name}{kind}.default" for name in _FP8 for kind in
          ("", "_grouped", "_batched")),
        "torch.ops.finegrained_fp8.w8a8_block_static_fp8_matmul.default",
        "torch.ops.finegrained_fp8.w8a8_tensor_dynamic_fp8_matmul.default",
        "torch.ops.mxfp4.grouped_mm.default", "torch.ops.transformers.grouped_mm_fallback.default",
        *(f"torch.ops._c10d_functional.{name}.default" for name in
          ("all_gather_into_tensor", "all_reduce", "all_to_all_single", "broadcast", "reduce_scatter_tensor",
           "wait_tensor")),
        *(f"torch.ops.higher_order.{name}" for name in
          ("associative_scan", "auto_functionalized", "auto_functionalized_v2", "call_torchbind", "cond",
           "flex_attention", "invoke_subgraph", "map_impl", "scan", "tag_activation_checkpoint", "while_loop",
           "with_effects", "wrap_with_autocast", "wrap_with_set_grad_enabled")),
        *(f"_operator.{name}" for name in
          ("abs", "add", "and_", "eq", "floordiv", "ge", "getitem", "gt", "index", "le", "lshift", "lt",
           "mod", "mul", "ne", "neg", "or_", "pos", "pow", "rshift", "sub", "truediv")),
        *(f"math.{name}" for name in ("ceil", "exp", "floor", "log2", "sqrt", "trunc")),
        *(f"torch.{name}" for name in
          ("_C._set_grad_enabled", "_sym_sqrt", "sym_float", "sym_int", "sym_ite", "sym_max", "sym_min",
           "sym_not", "sym_sum")),
    )
)  # fmt: skip
"""Operators outside ATen that programs often call and that are always registered, as documents name them.

They are those of every supported torch, and those that fakexport registers itself.
"""

CLASS_PREFIX = "__torch__.torch.classes."
_OVERLOAD = re.compile(r"torch\.ops\.(\w+)\.(\w+)\.(\w+)", re.ASCII)
_DEFINED = re.compile(r"^- func: ([\w.]+)\((.*)\) ->|^  autogen: (.+)$", re.MULTILINE)
_ARGUMENT = re.compile(r"(\S+) (\w+)(?=[=,]|$)")


def is_there(name: str) -> bool | None:
    """Return whether an operator is registered once torch is imported, without importing torch.

    Args:
        name: The name in a document, such as `torch.ops.aten.add.Tensor`.
    Returns:
        None if only torch itself can answer.
    """
    if name in ALWAYS_THERE:
        return True
    match = _OVERLOAD.fullmatch(name)
    if match is None or match[1] == "higher_order":
        return None
    namespace, operator, overload = match.groups()
    if namespace == "aten":
        return True if overload in aten_operators().get(operator, {}) else None
    if namespace in TORCH_NAMESPACES or namespace in _OWN_NAMESPACES or _has_backends():
        return None
    return False


def aten_arguments(operator: str) -> list[tuple[str, str]]:
    """Return the type and the name of each argument of all overloads of an operator, such as `add`."""
    texts = aten_operators().get(operator, {}).values()
    return [(kind, name) for text in texts for kind, name in _ARGUMENT.findall(text)]


@cache
def aten_operators() -> Mapping[str, Mapping[str, str]]:
    """Return the operators of ATen: name -> overload -> the arguments as text.

    The result is empty if torch is installed without `torchgen`.
    """
    found: dict[str, dict[str, str]] = {}
    spec = find_spec("torchgen")
    arguments = ""
    for folder in (spec and spec.submodule_search_locations) or ():
        file = Path(folder) / "packaged" / "ATen" / "native" / "native_functions.yaml"
        for function, own, generated in _DEFINED.findall(file.read_text("utf-8") if file.is_file() else ""):
            arguments = own if function else arguments  # A generated variant follows its function.
            for name in (function,) if function else generated.split(", "):
                operator, _, overload = name.partition(".")
                if function or not overload.endswith("out"):  # torch 2.13 does not generate all of these.
                    found.setdefault(operator, {})[overload or "default"] = arguments
    return found


@cache
def _has_backends() -> bool:
    """Return whether packages register operators when torch is imported, as backends of accelerators do."""
    from importlib.metadata import entry_points

    return bool(entry_points(group="torch.backends"))


def class_of(qualified: str) -> str:
    """Return the name of a C++ class, such as `acme::Table`, for its name in programs."""
    return qualified.removeprefix(CLASS_PREFIX).replace(".", "::")
