"""Suggest what to do about an error that `forward` or a constructor raises, by its message."""

from __future__ import annotations

import ast
import re
from collections.abc import Callable, Mapping
from linecache import getlines
from typing import Any

from fakexport.diagnose.marked_code import expression_at, text_of, value_of
from fakexport.diagnostics import Span

_Repair = Callable[[re.Match[str]], str]
_FORWARD: tuple[tuple[re.Pattern[str], _Repair], ...] = (
    (
        re.compile(r"forward\(\) missing \d+ required positional arguments?: (.+)"),
        lambda m: f"pass the missing input with --input: {m[1]}",
    ),
    (
        re.compile(r"[Mm]ake sure that `(\w+)` (?:is|are) passed"),
        lambda m: f"pass the missing input with --input: {m[1]}",
    ),
    (
        re.compile(
            r"expected scalar type \S*(?:float32|Float|bfloat16|BFloat16|float16|Half) but found"
            r"|Unsupported dtype (?:BFloat16|Half)",
        ),
        lambda m: (
            f"{IN_FLOAT32}, or convert at this line, so that its operands have one dtype that it accepts"
        ),
    ),
    (
        re.compile(r"'_OpNamespace' '(\w+)' object has no attribute '(\w+)'"),
        lambda m: f"name the library that registers {m[1]}::{m[2]} with --library",
    ),
    (
        re.compile(r"No module named '([\w.]+)'"),
        lambda m: (
            f"install the package that provides `{m[1]}` where fakexport runs, or do not import it here"
        ),
    ),
    (
        re.compile(r"same reduction dim, but got \[(?:.*, )?(\d+)\] X \[(\d+), \d+\]"),
        lambda m: (
            f"the input has {m[1]} features and the weight expects {m[2]}: create the layer for {m[1]} "
            f"(`in_features={m[1]}`), or pass a model input of which this line gets {m[2]}"
        ),
    ),
    (
        re.compile(r"expected input\[.*?\] to have (\d+) channels, but got (\d+) channels"),
        lambda m: (
            f"the input has {m[2]} channels and the weight expects {m[1]}: create the layer for {m[2]} "
            f"(`in_channels={m[2]}`), or pass a model input of which this line gets {m[1]}"
        ),
    ),
    (
        re.compile(r"shape '.*?' is invalid for input of size (\d+)"),
        lambda m: f"use sizes whose product is {m[1]}; one of them may be -1, which is inferred",
    ),
    (
        re.compile(r"Sizes of tensors must match except in dimension \S+ Expected (\d+) in dimension (\d+)"),
        lambda m: f"make the tensors have size {m[1]} in dimension {m[2]}, as the first one is",
    ),
    (
        re.compile(r"Attempting to broadcast a dimension of length \d+ at (-?\d+)!.*to (\[.*?\])", re.DOTALL),
        lambda m: f"make the other tensor's size at {m[1]} that of {m[2]}, or 1",
    ),
    (
        re.compile(r"'indices' to have one of the following scalar types: Long, Int"),
        lambda m: "pass integer indices: `.long()` here, or an input of int64",
    ),
    (
        re.compile(r"'(NoneType|bool|int|float|str|tuple|list|dict)' object has no attribute '(\w+)'"),
        lambda m: (
            f"pass an input, or set what the constructor reads, so that the value before `.{m[2]}` is not "
            f"{'None' if m[1] == 'NoneType' else f'of type {m[1]}'}"
        ),
    ),
    (
        re.compile(r"'(\w+Config)' object has no attribute '(\w+)'"),
        lambda m: f"set `{m[2]}` in the config: {m[1]} has no default of it",
    ),
    (
        re.compile(r"Could not find an? `(\w+)` argument in the config, or it is not set"),
        lambda m: f"set `{m[1]}` in the config: it is empty",
    ),
    (
        re.compile(r"'(\w+)' object has no attribute '(\w+)'"),
        lambda m: f"assign `self.{m[2]}` in the constructor of {m[1]}, or correct the name",
    ),
    (
        re.compile(r"Cannot access data pointer"),
        lambda m: (
            "tensors have no memory while the model is traced: do this in the constructor, or compute with "
            "torch operators"
        ),
    ),
    (
        re.compile(
            r"a sparse COO tensor on \w+:\d+ cannot be traced|SparseCsr(?:CPU|CUDA)"
            r"|zeros_sparse_compressed expected"
        ),
        lambda m: (
            "keep the tensors dense for this device, `table.to_dense()` where the model creates them, and "
            "`x @ y` in place of `torch.sparse.mm(x.to_sparse(), y)`: and no archive stores sparse tensors"
        ),
    ),
    (
        re.compile(r"Sparse (?:CSR|CSC|BSR|BSC) tensors do not have strides"),
        lambda m: (
            "register the sparse tensor with `self.register_buffer(name, tensor)`: torch.export supports it "
            "as a parameter or a buffer, but not as a plain attribute"
        ),
    ),
    (
        re.compile(r"vmap: It looks like you're calling \.item\(\) on a Tensor"),
        lambda m: (
            "index outside of `torch.vmap`, with tensors that broadcast: `mask[rows[:, None], columns]`. In "
            "eager mode too, a function of `torch.vmap` cannot index a tensor with its own arguments"
        ),
    ),
    (
        re.compile(r"Encountered aliasing during higher order op tracing"),
        lambda m: (
            "return a copy from the branch or step, `x.clone()` in place of `x`: it returns its own input"
        ),
    ),
    (
        re.compile(r"merging two branches' output in torch\.cond,\s+expected same (?:dtype|device)"),
        lambda m: "convert the results of both branches to one dtype and device, `result.to(x.dtype)`",
    ),
    (
        re.compile(r"QuantizedMeta|_empty_affine_quantized"),
        lambda m: (
            "quantize with torchao, `quantize_(model, Int8DynamicActivationInt8WeightConfig())`, in place of "
            "`torch.ao.quantization.quantize_dynamic`, whose weights are objects of C++ that torch.export "
            "cannot trace"
        ),
    ),
    (
        re.compile(r"DTensor"),
        lambda m: (
            "pass the module before it is distributed, without `distribute_module` and `parallelize_module`; "
            "an hf: model is sharded by `--parallel tp=N`, which exports the program of each rank"
        ),
    ),
)
QUANTIZED = (
    "quantize and dequantize in one operator, for quint8 `torch.fake_quantize_per_tensor_affine(x, scale, "
    "zero_point, 0, 255)`, which computes the same; or quantize the model with torchao"
)
IN_FLOAT32 = "check the model in float32, `--dtype float32`"
# What starts so is about the call, and not about the model.
OF_CALL = re.compile("pass the missing input|name the library|install the package|check the model in float32")
OF_CONFIG = re.compile(r"set `\w+` in the config")
NO_REPAIR = (
    "no fix is known for this error: if eager mode raises it too, compare the shapes and dtypes at this line "
    "with what the operator expects; if not, move the line out of `forward`"
)
_NONE_IN_CONSTRUCTOR = (
    "no fix is known for this error: if plain Python raises it too, correct the arguments at this line; if "
    "not, move what needs data into a method that is called once the weights are loaded"
)


def forward_repair(message: str) -> str:
    """Return what to do about an error of `forward`, or that nothing is known."""
    found = ((pattern.search(message), repair) for pattern, repair in _FORWARD)
    return next((repair(match) for match, repair in found if match), NO_REPAIR)


def empty_setting_repair(span: Span | None, variables: Mapping[str, Any]) -> str | None:
    """Return which setting of a config to set, where the marked line reads one that is None.

    It reads the setting itself, or an attribute that a constructor in this file takes from one.
    """
    names: set[str] = set()
    for node in ast.walk(expression_at(span) or ast.Constant(None)):
        if not isinstance(node, ast.Attribute) or span is None or value_of(node, variables) is not None:
            continue
        owner = text_of(node.value)
        if owner.rpartition(".")[2] == "config" and hasattr(value_of(node.value, variables), node.attr):
            names.add(node.attr)
        elif owner == "self" and hasattr(variables.get("self"), node.attr):
            taken = rf"self\.{re.escape(node.attr)}\s*=\s*(?:self\.)?config\.(\w+)\n"
            names |= set(re.findall(taken, "".join(getlines(span.path))))
    return f"set `{names.pop()}` in the config: it is empty" if len(names) == 1 else None


def construction_repair(message: str) -> str:
    """Return what to do about an error of a constructor, or that nothing is known."""
    found = forward_repair(message)
    return _NONE_IN_CONSTRUCTOR if found == NO_REPAIR else found
