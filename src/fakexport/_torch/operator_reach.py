"""The operators that do more than compute, which an untrusted program may not call, with the reasons.

Three rules decide, in this order. A namespace of torch is refused as a whole if its operators talk to other
processes or belong to an interpreter. Single operators are named with a reason. Everywhere else, libraries
included, an operator is refused if an argument's name and type say path, host, command or memory address.
So an operator that a later torch adds is refused where its schema shows what it does. All others with a text
argument are in `tests/torch_facts/operators_that_only_compute.txt`; a test names what is missing there.

Seen on torch 2.13. Source: `torch._C._jit_get_all_schemas()`.
"""

from __future__ import annotations

from functools import cache

import torch

FILES = "opens or writes a file named by the program"
PROCESSES = "exchanges data with other processes"
TERMINAL = "prints text from the program"
ADDRESSES = "uses memory addresses or sizes that nothing checks"
INTERPRETER = "belongs to the TorchScript interpreter, and torch.export does not write it"

_NAMESPACES = {
    "_c10d_functional": PROCESSES,
    "_c10d_functional_autograd": PROCESSES,
    "_dtensor": PROCESSES,
    "c10d": PROCESSES,
    "c10d_functional": PROCESSES,
    "debugprims": FILES,
    "device_mesh": PROCESSES,
    "prim": INTERPRETER,
    "static_runtime": INTERPRETER,
    "symm_mem": PROCESSES,
}
_OPERATORS = {
    "aten::_print": TERMINAL,
    "aten::_reshape_alias": ADDRESSES,
    "aten::_reshape_alias_copy": ADDRESSES,
    "aten::_sparse_bsc_tensor_unsafe": ADDRESSES,
    "aten::_sparse_bsr_tensor_unsafe": ADDRESSES,
    "aten::_sparse_compressed_tensor_unsafe": ADDRESSES,
    "aten::_sparse_coo_tensor_unsafe": ADDRESSES,
    "aten::_sparse_csc_tensor_unsafe": ADDRESSES,
    "aten::_sparse_csr_tensor_unsafe": ADDRESSES,
    "aten::from_file": FILES,
    "aten::save": FILES,
    "inductor::_alloc_from_pool": ADDRESSES,
    "inductor::_reinterpret_tensor": ADDRESSES,
    "inductor::resize_storage_bytes_": ADDRESSES,
    "mkldnn::data_ptr": ADDRESSES,
    # A tensor of bytes that is an object of C++ itself, so that writing to it forges the object.
    "_quantized::_wrapped_linear_prepack": ADDRESSES,
    "_quantized::_wrapped_quantized_linear_prepacked": ADDRESSES,
    "_quantized::linear_prepack_fp16_legacy": ADDRESSES,
    "_quantized::linear_prepack_legacy": ADDRESSES,
    "_quantized::wrapped_fbgemm_linear_fp16_weight": ADDRESSES,
    "_quantized::wrapped_fbgemm_pack_gemm_matrix_fp16": ADDRESSES,
    "aten::fbgemm_linear_fp16_weight": ADDRESSES,
    "aten::fbgemm_linear_fp16_weight_fp32_activation": ADDRESSES,
    "aten::fbgemm_linear_int8_weight": ADDRESSES,
    "aten::fbgemm_linear_int8_weight_fp32_activation": ADDRESSES,
    "aten::fbgemm_pack_gemm_matrix_fp16": ADDRESSES,
    "aten::fbgemm_pack_quantized_matrix": ADDRESSES,
    "profiler::_record_function_enter": ADDRESSES,
    "profiler::_record_function_exit": ADDRESSES,
    "quantized::linear_prepack_fp16_legacy": ADDRESSES,
    "quantized::linear_prepack_legacy": ADDRESSES,
}
_OF_FILES = frozenset(
    ("file", "filename", "filepath", "path", "paths", "filenames", "files", "dir", "directory", "folder")
)
_OF_HOSTS = frozenset(("url", "uri", "host", "hostname", "addr", "address", "socket", "endpoint", "server"))
_OF_COMMANDS = frozenset(("command", "cmd", "cmdline", "argv", "shell", "script"))
_OF_MEMORY = frozenset(("ptr", "ptrs", "pointer", "pointers", "address", "addr", "fd", "fds", "handle"))


def outside_reason(name: str) -> str | None:
    """Return why a program that is not trusted may not call an operator; None for one that only computes.

    Args:
        name: `aten.from_file.default`, or `aten.from_file` for all its overloads. It need not be registered.
    """
    namespace, _, rest = name.partition(".")
    qualified = f"{namespace}::{rest.partition('.')[0]}"
    if found := _NAMESPACES.get(namespace) or _OPERATORS.get(qualified):
        return found
    if namespace == "aten" and qualified not in _dispatched():
        return INTERPRETER if torch._C._jit_get_schemas_for_operator(qualified) else None
    return _reason_of_schemas(qualified)


def outside_reach(kind: str, name: str) -> str | None:
    """Return what an argument lets an operator reach, by its type and name; None for a plain value.

    Args:
        kind: Type in the schema: `str`, `Optional[str]`, `List[int]`.
        name: `filename`.
    """
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


def _reason_of_schemas(qualified: str) -> str | None:
    for schema in torch._C._jit_get_schemas_for_operator(qualified):
        for argument in schema.arguments:
            # `einsum` calls the order of its contractions a path, which is a list of integers.
            if found := outside_reach(str(argument.type), argument.name):
                return found
    return None


@cache
def _dispatched() -> frozenset[str]:
    """Return the operators of torch that have kernels; the interpreter of TorchScript has more of its own."""
    return frozenset(name.partition(".")[0] for name in torch._C._dispatch_get_all_op_names())
