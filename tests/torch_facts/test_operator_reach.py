"""What `operator_reach` relies on: every operator of this torch has been judged."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest
import torch

from fakexport._torch.operators.operator_reach import outside_reason
from fakexport._torch.operators.packaged_operators import TORCH_NAMESPACES

JUDGED = Path(__file__).with_name("operators_that_only_compute.txt")
"""Operators with an argument that could name something outside (a text, an object, anything) and that were
looked into: they only compute. `python -m tests.torch_facts.test_operator_reach` lists those of the installed
torch. Add a line here once you know what an operator does, or a reason to `operator_reach`."""

NAMESPACES = frozenset(
    (
        *("_native", "_native_aot", "_quantized", "_test", "aten", "coor", "cuda", "debug_mode_ops"),
        *("export", "flex_gemm", "flex_lib", "fsdp", "inductor", "inductor_prims", "mkl", "mkldnn"),
        *("mkldnn_prepacked", "onednn", "onnx", "onnx_symbolic", "prepacked", "prims", "profiler"),
        *("quantization", "quantized", "quantized_decomposed", "rngprims", "sparse", "streams"),
    )
)
"""The namespaces of torch whose operators are judged one by one; all others are refused."""

_LISTING = """
import torch, torch.onnx.ops
import torch.ao.quantization.fx._decomposed
import torch.nn.attention.flex_attention
from fakexport._torch.operators.operator_reach import outside_reason

TELLING = ("str", "Any", "PyObject", "Storage", "Stream", "__torch__", "Future", "RRef")
found = set()
for schema in torch._C._jit_get_all_schemas():
    if "::" in schema.name and outside_reason(schema.name.replace("::", ".")) is None:
        types = " ".join(str(argument.type) for argument in schema.arguments)
        if "..." in str(schema) or any(word in types for word in TELLING):
            found.add(schema.name)
print("\\n".join(sorted(found)))
"""


def operators_to_judge() -> list[str]:
    """The operators of torch, in a process that has loaded nothing else, which are not refused."""
    command = [sys.executable, "-W", "ignore", "-c", _LISTING]
    return subprocess.run(command, capture_output=True, text=True, check=True).stdout.split()


@pytest.mark.slow
def test_every_operator_that_could_name_something_outside_is_judged():
    unjudged = set(operators_to_judge()) - set(JUDGED.read_text().split())

    assert not unjudged, f"{sorted(unjudged)}: see {JUDGED.name}"


def test_every_namespace_is_judged():
    refused = {name for name in TORCH_NAMESPACES if outside_reason(f"{name}.anything.default")}

    assert refused == TORCH_NAMESPACES - NAMESPACES


REFUSED = {
    "opens or writes a file": "aten.from_file.default aten.from_file.out aten.save.default "
    "debugprims.load_tensor.default",
    "prints": "aten._print.default",
    "TorchScript interpreter": "aten.warn.default prim.Print.default prim.rpc_async.default",
    "other processes": "c10d.send.default _c10d_functional.all_reduce.default symm_mem.memset32_.default",
    "memory addresses": "inductor._reinterpret_tensor.default mkldnn.data_ptr.default "
    "quantized.linear_prepack_legacy.default",
}


@pytest.mark.parametrize("reason", REFUSED)
def test_what_reaches_outside_is_refused(reason):
    for name in REFUSED[reason].split():
        assert reason in (outside_reason(name) or ""), name


def test_what_only_computes_is_not_refused():
    names = """
        aten.linear.default aten.einsum.default aten.sym_size.int aten.set_.source_Tensor aten.index.Tensor
        aten._assert_async.msg profiler._record_function_enter_new.default
        quantized_decomposed.quantize_per_tensor.default no_such_library.boom.default
    """
    assert [name for name in names.split() if outside_reason(name)] == []


def test_an_operator_of_a_library_is_judged_by_its_schema():
    with torch.library._scoped_library("reaching", "DEF") as library:
        library.define("scale(Tensor x, str mode, int[] handles_of) -> Tensor")
        library.define("write(str filename, Tensor data) -> ()")
        library.define("share(Tensor x, str group_name) -> Tensor")
        library.define("peek(int data_ptr, int size) -> Tensor")
        library.define("start(Tensor x, str[] argv) -> Tensor")

        assert outside_reason("reaching.scale.default") is None
        assert "a file" in (outside_reason("reaching.write.default") or "")
        assert "other processes" in (outside_reason("reaching.share.default") or "")
        assert "memory addresses" in (outside_reason("reaching.peek.default") or "")
        assert "command" in (outside_reason("reaching.start.default") or "")


if __name__ == "__main__":
    print("\n".join(operators_to_judge()))
