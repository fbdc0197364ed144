"""Models for the comparison of programs, and three ways to capture a program as canonical lines of text."""

from __future__ import annotations

import fcntl
import gzip
import json
from collections.abc import Iterator, Sequence
from contextlib import contextmanager, nullcontext
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any

import torch
from torch import nn
from torch._subclasses.fake_tensor import FakeTensorMode
from torch.export import ExportedProgram
from torch.fx.experimental.symbolic_shapes import ShapeEnv
from torch.utils._pytree import tree_map_only

from benchmarks.gpu_proof.run import Run

FAILED = "failed: "
"""Start of the line that replaces a program that could not be captured."""


@dataclass(frozen=True)
class Case:
    """A model, and the options of its export.

    Args:
        source: Source for `fakexport check`.
        dtype: Dtype of the weights; None for the dtype of the source.
        dynamic: Values of `--dynamic`.
        device_map: Placement of the modules; None if the factory places them.
        is_large: Whether the model is too large for one GPU. Stock torch then exports it from fake tensors.
    """

    source: str
    dtype: str | None = None
    dynamic: tuple[str, ...] = ()
    device_map: str | None = "cuda:0"
    is_large: bool = False


CASES = {
    "mlp-gpu": Case("examples/mlp.py:gpu", device_map=None),
    "mlp-hybrid": Case("examples/mlp.py:hybrid", device_map=None),
    "literals": Case("benchmarks/literals.py:factory"),
    "captioning-encoder": Case("examples/captioning.py:encoder", dynamic=("pixel_values.0=1..64",)),
    "captioning-decoder": Case(
        "examples/captioning.py:decoder", dynamic=("input_ids.0=1..64", "input_ids.1=2..256")
    ),
    "vit": Case("hf:vit"),
    "vit-bf16": Case("hf:vit", "bfloat16"),
    "dinov2": Case("hf:dinov2"),
    "clip": Case("hf:clip"),
    "bert": Case("hf:bert"),
    "gpt2": Case("hf:gpt2"),
    "gpt2-dynamic": Case("hf:gpt2", "float16", ("auto",)),
    "t5": Case("hf:t5"),
    "whisper": Case("hf:whisper", "float16"),
    "wav2vec2": Case("hf:wav2vec2"),
    "llama-8b": Case("hf:examples/configs/llama-3.1-8b.json"),
    "llama-8b-dynamic": Case("hf:examples/configs/llama-3.1-8b.json", "bfloat16", ("auto",)),
    "mixtral-8x22b": Case("hf:examples/configs/mixtral-8x22b.json", "bfloat16", is_large=True),
    "qwen3-moe": Case("hf:qwen3_moe", "bfloat16"),
    "gpt-oss-120b": Case("hf:examples/configs/gpt-oss-120b.json", is_large=True),
    "deepseek-v3": Case("hf:examples/configs/deepseek-v3.json", is_large=True),
}
_SLOWEST = ("deepseek-v3", "mixtral-8x22b", "gpt-oss-120b", "qwen3-moe", "llama-8b-dynamic", "llama-8b")
_FILLS_THE_GPU = ("llama-8b", "llama-8b-dynamic", "qwen3-moe")


def slowest_first(names: Sequence[str]) -> list[str]:
    return sorted(names, key=lambda name: _SLOWEST.index(name) if name in _SLOWEST else len(_SLOWEST))


def native(run: Run, name: str) -> None:
    """Write the program that fakexport captures on the real GPU, without emulation."""
    _write(run, "native", name, captured(CASES[name], None))


def emulated(run: Run, name: str) -> None:
    """Write the program that fakexport captures under emulation."""
    _write(run, "emulated", name, captured(CASES[name], run.profile))


def stock(run: Run, name: str) -> None:
    """Write the program of stock `torch.export.export`, from real tensors on the GPU if the model fits.

    Only the model and the example inputs come from fakexport. Without a GPU, the tensors are fake tensors
    under emulation.
    """
    case = CASES[name]
    if run.is_pretend:
        lines = _stock_of_emulated_fakes(case, run.profile)
    else:
        with _gpu_memory_to_itself(run) if name in _FILLS_THE_GPU else nullcontext():
            lines = _stock_on_device(case, run.device)
    _write(run, "stock", name, lines)


def path_of(run: Run, kind: str, name: str) -> Path:
    """Return the path of a captured program. The emulated ones may be prepared on a machine without a GPU."""
    folder = run.made if kind == "emulated" else run.work
    return folder / "lines" / f"{kind}-{name}.json.gz"


def read_lines(path: Path) -> list[str]:
    found: list[str] = json.loads(gzip.decompress(path.read_bytes()))
    return found


def _write(run: Run, kind: str, name: str, lines: Sequence[str]) -> None:
    path = path_of(run, kind, name)
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_bytes(gzip.compress(json.dumps(lines).encode()))


def captured(case: Case, profile: str | None) -> list[str]:
    """Return the lines of the program that fakexport captures.

    Args:
        profile: The device to emulate; None to use the real device.
    """
    from fakexport.emulation.devices import emulate
    from fakexport.exporting.capture import capture
    from fakexport.models import parse_dynamic
    from fakexport.models.sources import ExampleInputs

    with emulate(profile) if profile else nullcontext():
        source, built, args, kwargs = _built(case)
        tracing = partial(source.tracing, built.module, ExampleInputs(args, kwargs))
        found = capture(built.module, args, kwargs, dynamic=parse_dynamic(case.dynamic), tracing=tracing)
    if found.program is None:
        assert found.failure is not None
        return [f"{FAILED}{found.failure.error_types[0]}: {found.failure.messages[0][:300]}"]
    return _lines(found.program)


def _built(case: Case) -> tuple[Any, Any, tuple[Any, ...], dict[str, Any]]:
    """Return the source of a case, its module with fake tensors, and its example inputs."""
    from fakexport.emulation.fake import build
    from fakexport.models.sources import resolve

    source = resolve(case.source)
    dtype = getattr(torch, case.dtype) if case.dtype else source.dtype
    built = build(source.factory, device_map=case.device_map, dtype=dtype, default_device="cuda:0")
    with built.mode:
        args, kwargs = built.args, dict(built.kwargs)
        if not args and not kwargs:
            inputs = source.example_inputs(built.module, "cuda:0", dtype)
            args, kwargs = inputs.args, dict(inputs.kwargs)
    return source, built, args, kwargs


def _stock_of_emulated_fakes(case: Case, profile: str) -> list[str]:
    from fakexport.emulation.devices import emulate

    with emulate(profile):
        source, built, args, kwargs = _built(case)
        return _lines(_stock_program(case, source, built.module, args, kwargs))


def _stock_on_device(case: Case, device: str) -> list[str]:
    from fakexport.models.sources import resolve

    source = resolve(case.source)
    dtype = getattr(torch, case.dtype) if case.dtype else source.dtype
    mode = FakeTensorMode(shape_env=ShapeEnv()) if case.is_large else nullcontext()
    with mode:
        module, args, kwargs = model_on(
            source, device, dtype, is_moved=not case.is_large and bool(case.device_map)
        )
    return _lines(_stock_program(case, source, module, args, kwargs))


def model_on(
    source: Any, device: str, dtype: torch.dtype | None, *, is_moved: bool = True
) -> tuple[nn.Module, tuple[Any, ...], dict[str, Any]]:
    """Return a model and its example inputs, both on one device.

    Args:
        is_moved: Whether to move the factory's module and inputs, because a factory may use the CPU.
    """
    before = torch.get_default_dtype()
    torch.set_default_dtype(dtype or before)
    try:
        with torch.device(device):
            made = source.factory()
    finally:
        torch.set_default_dtype(before)
    module, args, kwargs = (made, (), {}) if isinstance(made, nn.Module) else (*made, {})[:3]
    if is_moved:
        module = module.to(device)
        args, kwargs = tree_map_only(torch.Tensor, lambda tensor: tensor.to(device), (args, dict(kwargs)))
    if not args and not kwargs:
        inputs = source.example_inputs(module, device, dtype)
        args, kwargs = inputs.args, inputs.kwargs
    return module, args, dict(kwargs)


def _stock_program(
    case: Case, source: Any, module: nn.Module, args: tuple[Any, ...], kwargs: dict[str, Any]
) -> ExportedProgram:
    from fakexport.exporting.capture import as_torch_shapes, bound_inputs
    from fakexport.models import parse_dynamic
    from fakexport.models.sources import ExampleInputs

    shapes = as_torch_shapes(parse_dynamic(case.dynamic), bound_inputs(module, args, kwargs))
    with source.tracing(module, ExampleInputs(args, kwargs)):
        return torch.export.export(module, args, kwargs, dynamic_shapes=shapes, strict=False)


def _lines(program: ExportedProgram) -> list[str]:
    from fakexport.exporting.program.canonical import canonicalise

    return [str(line) for line in canonicalise(program).lines]


@contextmanager
def _gpu_memory_to_itself(run: Run) -> Iterator[None]:
    """Hold a lock, so that only one process of the run at a time uses most of the GPU's memory."""
    with (run.work / "large.lock").open("w") as file:
        fcntl.flock(file, fcntl.LOCK_EX)
        yield
