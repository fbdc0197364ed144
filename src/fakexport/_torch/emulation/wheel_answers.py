"""Answer queries about the torch build as the CUDA wheel does, if the CPU wheel's results differ.

`wheel_answers.toml` stores the results of the CUDA wheel of each torch version. tools/wheel_answers.py
collected them without a GPU. If a query is not listed there, either it depends on the device and
`device_queries.py` handles it, or its result is the same in both wheels. Seen on torch 2.11 to 2.15.
"""

from __future__ import annotations

import ast
import functools
import importlib
import re
import sys
import tomllib
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from types import FrameType, FunctionType
from typing import Any

import torch
import torch.backends.cudnn
import torch.utils._triton

from fakexport._torch.patching import original_of, outside_of_patches, stock_function

_PAGE = Path(__file__).with_suffix(".toml")
# torch imports these modules right after querying whether they are available.
_IMPORTED_BY_TORCH = ("torch.distributed.", "torch.utils._triton.", "torch.cuda.nccl.")
_QUESTION = re.compile(r"^_?(?:is|has|can|get|supports)_|_availability$|^__getattr__$")
_ABOUT_DEVICES = re.compile(r"cuda|xpu|mps|npu|rocm|hip|triton|accelerator|device|nccl", re.IGNORECASE)
# A ROCm wheel presents its GPU as CUDA. These answers were taken from torch's source, not from a ROCm wheel.
_BUILT_FOR_ROCM = """
    _C._has_cuda _C._has_cudnn _C._has_magma cuda.has_magma backends.cuda.is_built
    backends.cudnn.is_available backends.cuda.is_flash_attention_available
    _C._is_flash_attention_available cuda._is_compiled distributed.distributed_c10d.is_nccl_available
    utils._triton.has_triton_package utils._triton.has_triton
"""
_OF_ROCM = {
    **{f"torch.{name}": True for name in _BUILT_FOR_ROCM.split()},
    "torch.utils._triton.has_triton_tma": False,
    "torch.utils._triton.has_triton_tma_device": False,
    "torch.version.cuda": None,
    "torch.version.hip": "7.0",
}
_OF_DEVICE = frozenset({"torch.cuda.get_arch_list", "torch.cuda.get_gencode_flags"})


def _not_here(*args: Any) -> None:
    raise RuntimeError("NCCL cannot run on a virtual device")


# If cuDNN is available, `cudnn.is_acceptable` and `cudnn.flags` call these functions.
_CALLED_THEN: dict[tuple[Any, str], Callable[..., Any]] = {
    (torch.backends.cudnn._init, "__code__"): lambda: True,
    (torch._C, "_cuda_get_cudnn_benchmark_limit"): lambda: 10,
    (torch._C, "_cuda_set_cudnn_benchmark_limit"): lambda limit: None,
    # `torch.cuda.nccl.is_available(tensors)` checks that this exists.
    (torch._C, "_nccl_all_reduce"): _not_here,
}


class UnknownAnswer(RuntimeError):
    """It is unknown what a query returns on the target."""


@functools.cache
def _stored() -> Mapping[str, Any]:
    tables = tomllib.loads(_PAGE.read_text("utf-8"))
    version = ".".join(torch.__version__.split(".")[:2])
    newest = max(tables, key=lambda text: tuple(map(int, text.split("."))))
    return {name: value for name, value in tables.get(version, tables[newest]).items() if name != "wheel"}


def wheel_patches(capability: Callable[[], tuple[int, int]], *, is_rocm: bool) -> dict[tuple[Any, str], Any]:
    """Return `(owner, name) -> replacement` pairs for `Patches`, for a CUDA or ROCm device.

    Args:
        capability: Returns the capability of the first device. If the table has no entry for it, the entry
            of the next lower capability is used.
        is_rocm: Whether the device is a ROCm device. Queries without a known answer raise `UnknownAnswer`.
    """
    stored = _stored()
    if not is_rocm:
        answers = {name: functools.partial(_value, value, capability) for name, value in stored.items()}
    else:
        names = sorted((stored.keys() | _OF_ROCM.keys()) - _OF_DEVICE)
        answers = {name: functools.partial(_of_rocm, name) for name in names}
    return {**dict(_patches(answers)), **_CALLED_THEN}


def _value(stored: str | dict[str, str], capability: Callable[[], tuple[int, int]]) -> Any:
    if isinstance(stored, dict):
        own = capability()
        rows = {tuple(map(int, key.split("."))): value for key, value in stored.items()}
        stored = rows[max((row for row in rows if row <= own), default=min(rows))]
    return ast.literal_eval(stored)


def _of_rocm(name: str) -> Any:
    if name not in _OF_ROCM:
        raise UnknownAnswer(f"fakexport does not know what {name}() returns on a ROCm device")
    return _OF_ROCM[name]


def _patches(answers: Mapping[str, Callable[[], Any]]) -> Iterator[tuple[tuple[Any, str], Any]]:
    for full_name, answer in answers.items():
        module_name, _, name = full_name.rpartition(".")
        try:
            module = importlib.import_module(module_name)
        except ImportError:
            continue  # The table is for a different version.
        module = vars(module).get("m", module)  # `torch.backends.PropModule` wraps the real one.
        if name not in vars(module):
            continue
        stock = original_of(module, name)
        if not callable(stock):
            if module is torch._C:
                continue  # torch also reads this flag for the installed wheel.
            yield (module, name), answer()
            continue
        function = getattr(stock, "__wrapped__", stock)
        answering = _answering(full_name, function, answer)
        for owner in (module, *filter(None, [sys.modules.get(module_name.rpartition(".")[0])])):
            if original_of(owner, name) is stock:
                yield (owner, name), answering
        if isinstance(function, FunctionType):
            yield (function, "__code__"), answering


def _answering(full_name: str, function: Callable[..., Any], answer: Callable[[], Any]) -> Callable[..., Any]:
    is_imported = full_name.startswith(_IMPORTED_BY_TORCH)

    @functools.wraps(function)
    def answered(*args: Any, **kwargs: Any) -> Any:
        if _is_installed_wheel_meant(sys._getframe(1), is_imported=is_imported):
            stock = stock_function(function) if isinstance(function, FunctionType) else function
            return stock(*args, **kwargs)
        return answer()

    return answered


def _is_installed_wheel_meant(frame: FrameType | None, *, is_imported: bool) -> bool:
    """Return whether the answer decides what this process imports, so that it must fit the installed wheel.

    This is the case if an installed package makes the query while that package is being imported. If
    `is_imported` (torch imports the queried module), it is also the case if torch makes the query.
    """
    while (frame := outside_of_patches(frame)) is not None:
        is_torch = frame.f_globals.get("__name__", "").partition(".")[0] == "torch"
        if frame.f_globals is globals() or (is_torch and _QUESTION.search(frame.f_code.co_name)):
            frame = frame.f_back  # The caller is itself a query, so look at its caller.
            continue
        is_import = frame.f_code.co_name == "<module>" and "-packages" in frame.f_code.co_filename
        return is_import or (is_torch and is_imported)
    return False


@contextmanager
def questions_asked_again() -> Iterator[None]:
    """Clear the caches of device queries in installed packages, on entry and again on exit.

    An example is `transformers.utils.is_torch_cuda_available`, which caches its result.
    """
    _forget()
    try:
        yield
    finally:
        _forget()


def _forget() -> None:
    for name, module in sys.modules.copy().items():
        for function in _cached(module) if name.startswith(_PACKAGES) else ():
            function.cache_clear()


@functools.cache  # The names in a package's module do not change.
def _cached(module: Any) -> tuple[Any, ...]:
    values = [original_of(module, name) for name in list(vars(module))]
    return tuple(filter(_is_cached_question, values))


def _is_cached_question(value: Any) -> bool:
    if type(value) is not functools._lru_cache_wrapper:
        return False
    code = getattr(value.__wrapped__, "__code__", None)
    return code is not None and any(map(_ABOUT_DEVICES.search, (code.co_name, *code.co_names)))


_PACKAGES = (
    "torch.utils._",
    "torch.backends.",
    "transformers.utils.",
    "diffusers.utils.",
    "accelerate.utils.",
)
