"""Find operators that do more than compute. An untrusted program must not call them.

An operator is rejected for one of three reasons, which are checked in this order: it is in a namespace of
torch that communicates with other processes or belongs to an interpreter; it is listed in this module with a
reason; or the name and type of an argument suggest a path, host, command or memory address. The last check
also covers operators of libraries, and operators that later torch releases add. The operators of torch that
are accepted although they have a string or object argument are listed in
`tests/torch_facts/operators_that_only_compute.txt`. A test fails if the list is incomplete.

Seen on torch 2.13. Source: `torch._C._jit_get_all_schemas()`.
"""

from __future__ import annotations

import sys
from collections.abc import Iterable
from functools import cache
from typing import Any

from .packaged_operators import TORCH_NAMESPACES, aten_arguments

FILES = "opens or writes a file named by the program"
PROCESSES = "exchanges data with other processes"
TERMINAL = "prints text when the program runs"
ADDRESSES = "uses memory addresses or sizes without checking them"
INTERPRETER = "belongs to the TorchScript interpreter; torch.export never produces it"

_NAMESPACES = {
    "debugprims": FILES,
    **dict.fromkeys(("prim", "static_runtime"), INTERPRETER),
    **dict.fromkeys(
        ("_c10d_functional", "_c10d_functional_autograd", "_dtensor", "c10d", "c10d_functional",
         "device_mesh", "symm_mem"), PROCESSES,
    ),
}  # fmt: skip
# The operators after the empty line use byte tensors that contain a C++ object. A program that writes to such
# a tensor could forge the object.
_ADDRESSES = """
    aten::_reshape_alias aten::_reshape_alias_copy aten::_sparse_bsc_tensor_unsafe
    aten::_sparse_bsr_tensor_unsafe aten::_sparse_compressed_tensor_unsafe aten::_sparse_coo_tensor_unsafe
    aten::_sparse_csc_tensor_unsafe aten::_sparse_csr_tensor_unsafe inductor::_alloc_from_pool
    inductor::_reinterpret_tensor inductor::resize_storage_bytes_ mkldnn::data_ptr

    _quantized::_wrapped_linear_prepack _quantized::_wrapped_quantized_linear_prepacked
    _quantized::linear_prepack_fp16_legacy _quantized::linear_prepack_legacy
    _quantized::wrapped_fbgemm_linear_fp16_weight _quantized::wrapped_fbgemm_pack_gemm_matrix_fp16
    aten::fbgemm_linear_fp16_weight aten::fbgemm_linear_fp16_weight_fp32_activation
    aten::fbgemm_linear_int8_weight aten::fbgemm_linear_int8_weight_fp32_activation
    aten::fbgemm_pack_gemm_matrix_fp16 aten::fbgemm_pack_quantized_matrix profiler::_record_function_enter
    profiler::_record_function_exit quantized::linear_prepack_fp16_legacy quantized::linear_prepack_legacy
"""
_OPERATORS = {
    "aten::_print": TERMINAL,
    **dict.fromkeys(("aten::from_file", "aten::save"), FILES),
    **dict.fromkeys(_ADDRESSES.split(), ADDRESSES),
}
_OF_FILES = frozenset(
    ("file", "filename", "filepath", "path", "paths", "filenames", "files", "dir", "directory", "folder")
)
_OF_HOSTS = frozenset(("url", "uri", "host", "hostname", "addr", "address", "socket", "endpoint", "server"))
_OF_COMMANDS = frozenset(("command", "cmd", "cmdline", "argv", "shell", "script"))
_OF_MEMORY = frozenset(("ptr", "ptrs", "pointer", "pointers", "address", "addr", "fd", "fds", "handle"))


def outside_reason(name: str) -> str | None:
    """Return why an untrusted program must not call an operator, or None if the operator only computes.

    Args:
        name: A name such as `aten.from_file.default`, or `aten.from_file` for all overloads. The operator
            need not be registered. If torch is not imported yet, it is imported only for operators that its
            wheel does not list.
    """
    namespace, _, rest = name.partition(".")
    operator = rest.partition(".")[0]
    qualified = f"{namespace}::{operator}"
    if found := _NAMESPACES.get(namespace) or _OPERATORS.get(qualified):
        return found
    if "torch" not in sys.modules:
        if namespace == "aten" and (arguments := aten_arguments(operator)):
            return _reason_of(arguments)
        if namespace not in TORCH_NAMESPACES:
            return None  # Without torch, no library has registered an operator.
    schemas = _registered_schemas(qualified)
    if namespace == "aten" and qualified not in _dispatched():
        return INTERPRETER if schemas else None
    return _reason_of((str(each.type), each.name) for schema in schemas for each in schema.arguments)


def outside_reach(kind: str, name: str) -> str | None:
    """Return what an operator can access through an argument of this type and name, or None if nothing."""
    words = set(name.lower().split("_"))
    if "str" in kind:
        if words & _OF_FILES:
            return FILES
        if words & _OF_HOSTS or name.lower() == "group_name":
            return PROCESSES
        if words & _OF_COMMANDS:
            return "runs a command that the program names"
    if "int" in kind.lower() and words & _OF_MEMORY:
        return ADDRESSES
    return None


def _reason_of(arguments: Iterable[tuple[str, str]]) -> str | None:
    # The type matters: the argument `path` of `einsum` is a list of integers, not a file.
    return next(filter(None, (outside_reach(kind, name) for kind, name in arguments)), None)


def _registered_schemas(qualified: str) -> list[Any]:
    """Return the schemas of the operator's registered overloads."""
    import torch

    return torch._C._jit_get_schemas_for_operator(qualified)


@cache
def _dispatched() -> frozenset[str]:
    """Return the operators that have kernels. Other operators belong to the TorchScript interpreter."""
    import torch

    return frozenset(name.partition(".")[0] for name in torch._C._dispatch_get_all_op_names())
