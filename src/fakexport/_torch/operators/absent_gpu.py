"""Make Inductor and Triton compile portable code for an NVIDIA GPU, which this machine may lack.

Seen on torch 2.11 (Triton 3.6), 2.13 (3.7) and 2.15 (3.9).

Use this only in a process that does nothing else, because the patches are never removed. Without the GPU, the
process must run under `emulate`, which answers device queries.

Source: `torch/_dynamo/device_interface.py`, `torch/_inductor/codegen/wrapper.py`, `cpp_builder.py`,
`graph.py`, `runtime/triton_heuristics.py`; `triton/backends/nvidia/driver.py`.
"""

from __future__ import annotations

import re
import subprocess
import tempfile
from collections.abc import Callable, Iterable
from dataclasses import dataclass, replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import torch
from torch import Tensor
from torch._subclasses.fake_tensor import FakeTensor, unset_fake_temporarily

from .inductor import compiler_command

HOST_ARCHITECTURE = "x86-64-v3"
"""The value of `-march` for host code: x86-64 with AVX2. By default, Inductor compiles for the processor of
the build machine, with `-march=native` and flags for single vector extensions (`-mavx512f`).
"""

OPTIONS = {
    "triton.autotune_at_compile_time": True,  # Generates tuning code, which `_without_timing` replaces.
    "compile_threads": 1,  # Worker processes would not have the driver below.
    "shape_padding": False,  # Padding would run kernels with and without padding to time them.
    # Headers that are precompiled for a temporary folder are never reused, and each takes 150 MB in /tmp.
    "aot_inductor.precompile_headers": False,
}
"""Options of Inductor for a GPU that this machine lacks."""

if "aot_inductor.enable_line_tables" in torch._inductor.list_options():  # torch 2.11 has no line tables.
    OPTIONS["aot_inductor.enable_line_tables"] = False  # They contain the path of the build folder.

ENVIRONMENT = {"PYTHONHASHSEED": "0", "TRITON_DISABLE_LINE_INFO": "1"}
"""Environment variables that make the packages of equal programs identical."""


TESTED = ("2.11", "2.12", "2.13", "2.14", "2.15")
"""Releases of torch on which the tests compiled for an absent GPU."""


def untested_release() -> str | None:
    """Return the release of the installed torch, such as `2.16`, or None if it is in `TESTED`."""
    release = ".".join(str(torch.__version__).split(".")[:2])
    return None if release in TESTED else release


@dataclass(frozen=True)
class AbsentGpu:
    """The properties of the GPU that Triton and Inductor need.

    Args:
        capability: Compute capability, (9, 0).
        multiprocessors: Number of streaming multiprocessors.
        shared_memory_bytes: Maximum shared memory of a thread block with opt-in.
        registers: 32-bit registers of a multiprocessor.
        warp_size: Threads that run in lockstep.
    """

    capability: tuple[int, int]
    multiprocessors: int
    shared_memory_bytes: int
    registers: int
    warp_size: int


@dataclass(frozen=True)
class CompiledKernel:
    """A Triton kernel of the package, with the configuration that was chosen for it.

    Args:
        name: The kernel's name in the generated code.
        configuration: Block sizes, warps and stages, as Triton prints them.
        configurations: Number of configurations that Inductor proposed.
        registers: Registers per thread.
        local_bytes: Local memory per thread, in bytes: registers that were spilled, and the stack.
        shared_bytes: Shared memory of a thread block, in bytes.
        warps: Warps of a thread block.
        microseconds: Time of the kernel, if several configurations were timed.
        untimed: The configuration that would have been chosen without timing, if it is a different one.
        untimed_microseconds: Time of that configuration.
    """

    name: str
    configuration: str
    configurations: int
    registers: int
    local_bytes: int
    shared_bytes: int
    warps: int
    microseconds: float | None = None
    untimed: str = ""
    untimed_microseconds: float | None = None


def prepare(gpu: AbsentGpu, folder: Path, *, is_timed: bool = False) -> list[CompiledKernel]:
    """Patch torch and Triton in this process. Return the list to which each compiled kernel will be appended.

    Args:
        gpu: The GPU to compile for.
        is_timed: Whether this machine has the GPU, to choose the configurations of kernels by timing them.
        folder: The build folder. The generated code will not contain its path. A folder `toolkit` with
            headers and stub libraries to link against is created in it.
    """
    from torch._inductor import codecache, cpp_builder, cpu_vec_isa, graph
    from torch._inductor.codegen.wrapper import PythonWrapperCodegen
    from torch.utils import cpp_extension
    from triton.runtime import driver

    kernels: list[CompiledKernel] = []
    chooses = _with_timing if is_timed else _without_timing
    if not is_timed:
        _look_queries_up_when_called()
        driver.set_active(_driver_class()(gpu))
    replacements: tuple[tuple[Any, str, Callable[[Any], Any]], ...] = (
        (PythonWrapperCodegen, "generate_and_run_autotune_block", lambda own: chooses(own, kernels)),
        (graph, "is_same_tensor", _compared_by_identity),
        (codecache, "write", lambda own: _without_folder(own, folder)),
        (cpp_builder, "_get_optimization_cflags", lambda own: _portable(own, folder)),
        (cpu_vec_isa, "valid_vec_isa_list", lambda own: lambda: [cpu_vec_isa.VecAVX2()]),
        (cpp_extension, "CUDA_HOME", lambda own: str(_toolkit(folder / "toolkit"))),
    )
    for owner, name, replaced in replacements:
        setattr(owner, name, replaced(getattr(owner, name)))
    return kernels


def _look_queries_up_when_called() -> None:
    """Make `CudaInterface` look up functions of `torch.cuda` on each call.

    The stock class binds them at import, before they are emulated.
    """
    from torch._dynamo.device_interface import CudaInterface

    for name, held in list(vars(CudaInterface).items()):
        bound: Any = held.__func__ if isinstance(held, staticmethod) else None
        if getattr(bound, "__module__", "").startswith("torch.cuda"):
            setattr(CudaInterface, name, staticmethod(_late(bound.__name__)))
    # In a CUDA build, these are C++ functions.
    for name in ("get_raw_stream", "exchange_device", "maybe_exchange_device"):
        setattr(CudaInterface, name, staticmethod(lambda index: 0))


def _late(name: str) -> Callable[..., Any]:
    return lambda *args, **kwargs: getattr(torch.cuda, name)(*args, **kwargs)


def _driver_class() -> Any:
    from triton.backends.nvidia.driver import CudaDriver

    class Driver(CudaDriver):  # type: ignore[misc]
        """Describes the GPU to Triton. The stock driver compiles C code against `libcuda.so.1`."""

        def __init__(self, gpu: AbsentGpu) -> None:
            self.get_device_capability = lambda device=None: gpu.capability
            self.get_current_stream = lambda device=None: 0
            self.get_current_device = lambda: 0
            self.set_current_device = lambda device: None
            self.launcher_cls = lambda source, metadata: _refuse_to_run
            self.utils = SimpleNamespace(
                load_binary=lambda name, cubin, shared, device: _described(gpu, name, cubin),
                get_device_properties=lambda device: {
                    "max_shared_mem": gpu.shared_memory_bytes,
                    "max_num_regs": gpu.registers,
                    "multiprocessor_count": gpu.multiprocessors,
                    "warpSize": gpu.warp_size,
                },
                set_printf_fifo_size=_refuse_to_run,
            )

    return Driver


def _described(gpu: AbsentGpu, name: str, cubin: bytes) -> tuple[Any, int, int, int, int]:
    """Return what loading a kernel returns: module, function, registers, spilled words, threads per block.

    Registers are allocated in units of eight per thread, and a block has at most 1024 threads.
    """
    registers, local_bytes = resource_usage(name, cubin)
    threads = gpu.registers // (-(-max(registers, 1) // 8) * 8) // gpu.warp_size * gpu.warp_size
    return object(), 0, registers, local_bytes // 4, min(1024, threads)


def resource_usage(name: str, cubin: bytes) -> tuple[int, int]:
    """Return a kernel's registers per thread, and its local memory per thread in bytes (spills and stack)."""
    with tempfile.NamedTemporaryFile(suffix=".cubin") as file:
        file.write(cubin)
        file.flush()
        command = [str(_nvidia() / "bin/cuobjdump"), "--dump-resource-usage", file.name]
        text = subprocess.run(command, check=True, capture_output=True, text=True).stdout
    found = re.search(rf"Function {re.escape(name)}:\s*REG:(\d+) STACK:(\d+)", text)
    if found is None:
        raise RuntimeError(f"cuobjdump printed no resource usage of {name}: {text.strip()}")
    return int(found[1]), int(found[2])


def _nvidia() -> Path:
    import triton

    return Path(triton.__file__).parent / "backends/nvidia"


def _refuse_to_run(*args: Any, **kwargs: Any) -> None:
    raise RuntimeError("the kernel was compiled for a GPU that this machine lacks")


def _without_timing(own: Callable[[Any], None], kernels: list[CompiledKernel]) -> Callable[[Any], None]:
    def generate_and_run_autotune_block(self: Any) -> None:
        """Compile the kernels by running their definitions. The calls that time the kernels are not run."""
        from torch._inductor.runtime.triton_heuristics import CachingAutotuner

        self.kernel_autotune_defs.splice("\nasync_compile.wait(globals())\ndel async_compile\n")
        scope: dict[str, Any] = {}
        exec(self.kernel_autotune_defs.getvalue(), scope)
        for name, kernel in scope.items():
            if isinstance(kernel, CachingAutotuner):
                kernel.precompile()
                chosen = _chosen(kernel.launchers)
                kernel.save_gpu_kernel("stream", chosen)
                kernels.append(
                    _record(kernel.inductor_meta.get("kernel_name", name), chosen, kernel.launchers)
                )

    return generate_and_run_autotune_block


def _with_timing(own: Callable[[Any], None], kernels: list[CompiledKernel]) -> Callable[[Any], None]:
    """Return the stock function, which times the configurations of each kernel on random inputs."""
    from torch._inductor.runtime import triton_heuristics

    tuner: Any = triton_heuristics.CachingAutotuner
    benchmark, save = tuner.benchmark_all_configs, tuner.save_gpu_kernel

    def benchmark_all_configs(self: Any, *args: Any, **kwargs: Any) -> Any:
        self.times_ms = benchmark(self, *args, **kwargs)  # Launcher -> time.
        return self.times_ms

    def save_gpu_kernel(self: Any, stream: Any, launcher: Any) -> None:
        times = getattr(self, "times_ms", {launcher: 0.0})
        untimed = _chosen(list(times))
        kernel = _record(self.inductor_meta["kernel_name"], launcher, list(times))
        if len(times) > 1:
            kernel = replace(kernel, microseconds=times[launcher] * 1e3)
        if untimed is not launcher:
            slower = times[untimed] * 1e3
            kernel = replace(kernel, untimed=str(untimed.config), untimed_microseconds=slower)
        kernels.append(kernel)
        save(self, stream, launcher)

    tuner.benchmark_all_configs, tuner.save_gpu_kernel = benchmark_all_configs, save_gpu_kernel

    def generate_and_run_autotune_block(self: Any) -> None:
        with unset_fake_temporarily():  # Kernels run on real tensors.
            own(self)

    return generate_and_run_autotune_block


def _chosen(launchers: list[Any]) -> Any:
    """Return the first launcher that uses no local memory. If all of them use it, return the first one.

    Inductor sorts the launchers by preference.
    """
    return min(launchers, key=lambda launcher: (launcher.n_spills or 0) > 0)


def _record(name: str, chosen: Any, launchers: list[Any]) -> CompiledKernel:
    return CompiledKernel(
        name=name,
        configuration=str(chosen.config),
        configurations=len(launchers),
        registers=chosen.n_regs,
        local_bytes=4 * (chosen.n_spills or 0),
        shared_bytes=chosen.shared,
        warps=chosen.config.num_warps,
    )


def _compared_by_identity(own: Callable[[Tensor, Tensor], bool]) -> Callable[[Tensor, Tensor], bool]:
    """Return a version of `is_same_tensor` that compares fake tensors by identity.

    Inductor merges constants with equal addresses, and all fake tensors have the address 0.
    """

    def is_same_tensor(data: Tensor, value: Tensor) -> bool:
        if isinstance(data, FakeTensor) or isinstance(value, FakeTensor):
            return data is value
        return own(data, value)

    return is_same_tensor


def _portable(own: Callable[..., Any], folder: Path) -> Callable[..., Any]:
    # Checks in torch's headers contain `__FILE__`, which is the absolute path of the header.
    paths = {folder: ".", Path(torch.__file__).parent: "torch"}

    def _get_optimization_cflags(*args: Any, **kwargs: Any) -> Any:
        flags, link = own(*args, **kwargs)
        flags = [flag.replace("march=native", f"march={HOST_ARCHITECTURE}") for flag in flags]
        return [*flags, *(f"ffile-prefix-map={path}={name}" for path, name in paths.items())], link

    return _get_optimization_cflags


def _without_folder(own: Callable[..., Any], folder: Path) -> Callable[..., Any]:
    def write(content: Any, extension: str, extra: str = "", *args: Any, **kwargs: Any) -> Any:
        """Write a file without the path of the build folder.

        The file is named after the hash of its content and of `extra`, which is a command with paths.
        """
        if extension in ("wrapper.cpp", "kernel.cpp"):
            content, extra = content.replace(f"{folder}/", ""), ""
        return own(content, extension, extra, *args, **kwargs)

    return write


def remove_commands(files: Iterable[Path]) -> None:
    """Remove compile commands, which contain paths, from the end of C++ sources that Inductor compiled."""
    for file in files:
        if file.suffix == ".cpp":
            file.write_text(file.read_text().partition("\n// Compile cmd\n")[0])


_DRIVER_SYMBOLS = (
    "cuModuleLoad",
    "cuModuleLoadData",
    "cuModuleUnload",
    "cuModuleGetFunction",
    "cuFuncSetAttribute",
    "cuLaunchKernel",
    "cuLaunchKernelEx",
    "cuGetErrorString",
    "cuTensorMapEncodeTiled",
)


def _toolkit(folder: Path) -> Path:
    """Create the parts of the CUDA toolkit that a C++ compiler needs, and return their folder.

    These are the headers that Triton ships, and a stub library with the symbols of the CUDA driver to link
    against. If this torch is CPU-only, a stub of `libtorch_cuda.so` is added.
    """
    (folder / "lib64").mkdir(parents=True)
    (folder / "include" / "nv").mkdir(parents=True)
    for header in (_nvidia() / "include").iterdir():
        (folder / "include" / header.name).symlink_to(header)
    # Triton does not ship this header of CCCL. Host compilers take the last branch.
    (folder / "include/nv/target").write_text(
        "#pragma once\n#define NV_IF_ELSE_TARGET(condition, yes, no) no\n"
    )
    _stub(folder, "libcuda.so", "libcuda.so.1", _DRIVER_SYMBOLS)
    home = Path(torch.__file__).parent
    if not (home / "lib/libtorch_cuda.so").exists():
        shims = home / "include/torch/csrc/inductor/aoti_torch"
        text = "".join((shims / file).read_text() for file in ("generated/c_shim_cuda.h", "c/shim.h"))
        symbols = sorted(set(re.findall(r"\b(aoti_torch_\w*cuda\w*)\s*\(", text)))
        _stub(folder, "libtorch_cuda.so", "libtorch_cuda.so", symbols)
    return folder


def _stub(folder: Path, file: str, name: str, symbols: Iterable[str]) -> None:
    """Compile a stub library with these symbols to link against. It is never loaded."""
    source = folder / f"{file}.c"
    source.write_text("".join(f"int {symbol}(void) {{ return 999; }}\n" for symbol in symbols))
    out = str(folder / "lib64" / file)
    compiler = compiler_command() or "g++"
    command = [compiler, "-x", "c", "-shared", "-fPIC", f"-Wl,-soname,{name}", "-o", out, str(source)]
    subprocess.run(command, check=True, capture_output=True)
