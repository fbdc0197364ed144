"""What AOTInductor allocates, next to the program's `module()`: `python -m benchmarks.aoti_memory`.

Small models are compiled for the CPU. The buffers that AOTInductor plans for itself are read off the wrapper
that it writes; buffers that it gets from kernels of torch (attention) are not in there. Both the compiled
model and `module()` run under torch's profiler. A plan is about `module()`, and counts none of these buffers.
"""

from __future__ import annotations

import functools
import json
import re
import sys
import tempfile
import warnings
import zipfile
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

import torch

MODELS: Mapping[str, Mapping[str, Any]] = {
    "GPT-2": {"model_type": "gpt2", "n_embd": 64, "n_layer": 2, "n_head": 2, "vocab_size": 256},
    "BERT": {
        "model_type": "bert", "hidden_size": 64, "num_hidden_layers": 2, "num_attention_heads": 2,
        "intermediate_size": 128, "vocab_size": 256,
    },
    "ViT": {
        "model_type": "vit", "hidden_size": 64, "num_hidden_layers": 2, "num_attention_heads": 2,
        "intermediate_size": 128, "image_size": 64,
    },
}  # fmt: skip
_ARRAY = re.compile(r"int64_t (?P<name>int_array_\d+)\[\] = \{(?P<sizes>[^}]*)\}")
_TAKEN = re.compile(
    r"aoti_torch_empty_strided\(\d+, (?P<sizes>\w+), \w+, cached_torch_dtype_(?P<dtype>\w+),"
    r".*&(?P<name>\w+)_handle\)"
)
_KEPT = re.compile(r"auto (?P<name>\w+) = (?:std::move\(|.*reinterpret_tensor_wrapper\()(?P<source>buf\d+)\b")
_FREED = re.compile(r"\b(?P<name>buf\d+)\.reset\(\)")


def planned_bytes(wrapper: str) -> int:
    """Return the most that the buffers of a wrapper hold at once, inside of one call.

    Args:
        wrapper: C++ that AOTInductor wrote, with sizes that are numbers.
    """
    return max(_held(wrapper), default=0)


def _held(wrapper: str) -> Iterator[int]:
    body = wrapper[wrapper.index("::run_impl(") :]
    sizes = {found["name"]: found["sizes"] for found in _ARRAY.finditer(wrapper)}
    taken: dict[str, int] = {}
    for line in body.splitlines():
        if found := _TAKEN.search(line):
            numbers = [int(size.strip(" L")) for size in sizes[found["sizes"]].split(",") if size.strip()]
            taken[found["name"]] = functools.reduce(
                int.__mul__, numbers, getattr(torch, found["dtype"]).itemsize
            )
        elif (found := _KEPT.search(line)) and "// reuse" in line and found["source"] in taken:
            taken[found["name"]] = taken.pop(found["source"])
        else:
            for found in _FREED.finditer(line):
                taken.pop(found["name"], None)
        yield sum(taken.values())


def row_of(name: str, folder: Path) -> dict[str, Any]:
    """Return what a plan says of a model, and what `module()` and the compiled model take."""
    import fakexport as fe
    from fakexport.memory import liveness, sizes_at
    from fakexport.sources import Workload, resolve
    from tests.measured_memory import measured_peak
    from tests.round_trip.reference import real_model

    path = folder / f"{name}.json"
    path.write_text(json.dumps(MODELS[name]))
    source = resolve(f"hf:{path}", workload=Workload("forward", 4, 64))
    module = real_model(source, "float32").eval()
    given = dict(source.example_inputs(module, "cpu", None).kwargs)
    program = fe.export(source, target="cpu", dtype=torch.float32)
    bound = fe.bind(program, dict(module.state_dict()), check_finite=False)
    package = torch._inductor.aoti_compile_and_package(bound, package_path=str(folder / f"{name}.pt2"))
    compiled = torch._inductor.aoti_load_package(package)
    with zipfile.ZipFile(package) as archive:
        (wrapper,) = (entry for entry in archive.namelist() if entry.endswith(".wrapper.cpp"))
        text = archive.read(wrapper).decode()
    return {
        "model": name,
        "plan": sizes_at(liveness(program), {}).peak("cpu").run_bytes,
        "module()": measured_peak(functools.partial(bound.module(), **given)),
        "wrapper": planned_bytes(text),
        "compiled": measured_peak(functools.partial(compiled, **given)),
    }


def main() -> int:
    """Print a row per model."""
    warnings.simplefilter("ignore")
    torch.set_num_threads(1)
    print("| model | plan | `module()` | buffers in the wrapper | compiled model |\n|---|---|---|---|---|")
    with tempfile.TemporaryDirectory() as folder:
        for name in MODELS:
            row = row_of(name, Path(folder))
            print(
                "| " + " | ".join([name, *(f"{size:,}" for size in list(row.values())[1:])]) + " |",
                flush=True,
            )
    return 0


if __name__ == "__main__":
    sys.exit(main())
