"""Run a package for an absent GPU on the CPU: `python -m tests.e2e.simulated_gpu FOLDER`, in its own process.
Without a folder it reads folders from the standard input, and forks for each.

The compiled host code of the package runs as it is: sizes, strides, grids, arguments, buffers. A library in
place of the driver passes each launch to Triton's interpreter, which runs the source of the kernel, and
torch's CUDA kernels are their CPU siblings. What does not run is the machine code of the Triton kernels.

FOLDER has `package.pt2`, `kernels.json` (of `noted_kernels`), `weights.safetensors`, and for each call
`inputs-N.safetensors`. The outputs are written to `outputs-N.safetensors`. Tensors are named by number.
"""

from __future__ import annotations

import ctypes
import json
import os
import re
import subprocess
import sys
import tempfile
import traceback
import zipfile
from pathlib import Path
from types import SimpleNamespace
from typing import Any

os.environ["TRITON_INTERPRET"] = "1"  # Read when triton is imported.
_DRIVER, _TORCH = (
    Path(__file__).with_name(f"simulated_{name}.c").read_text() for name in ("driver", "torch")
)


def _built(folder: Path, name: str, source: str, *more: str) -> str:
    (folder / f"{name}.c").write_text(source)
    out = folder / f"{name}.so"
    subprocess.run(["gcc", "-shared", "-fPIC", "-O1", "-o", out, folder / f"{name}.c", *more], check=True)
    return str(out)


if __name__ == "__main__":  # Before torch, so that the package finds this driver.
    with tempfile.TemporaryDirectory() as place:
        library = _built(Path(place), "driver", _DRIVER, "-Wl,-soname,libcuda.so.1")
        driver = ctypes.CDLL(library, ctypes.RTLD_GLOBAL)

import numpy as np  # noqa: E402
import torch  # noqa: E402
import triton  # noqa: E402
import triton.language as tl  # noqa: E402
from safetensors.torch import load_file, save_file  # noqa: E402
from torch._inductor.runtime import triton_helpers  # noqa: E402
from triton.runtime import interpreter  # noqa: E402

_stock_patch = interpreter._patch_lang_tensor


def _patch_lang_tensor(tensor: Any, scope: Any) -> None:
    """NumPy 2.5 converts no array of one element that has a dimension to a number."""
    _stock_patch(tensor, scope)
    scope.set_attr(tensor, "__index__", lambda self: int(self.handle.data.reshape(-1)[0]))


_stock_atomic = interpreter.InterpreterBuilder.create_atomic_rmw


def _create_atomic_rmw(self: Any, operation: Any, pointers: Any, values: Any, mask: Any, *more: Any) -> Any:
    """The stock function takes broadcast arrays for contiguous ones."""
    for handle in (pointers, values, mask):
        handle.data = np.ascontiguousarray(handle.data)
    return _stock_atomic(self, operation, pointers, values, mask, *more)


_ASSEMBLY: dict[str, Any] = {
    "rcp.approx.ftz.f32": lambda x: 1 / x,
    "fma.rn.f32": lambda x, y, z: (x.astype(np.float64) * y + z).astype(np.float32),
}


def _create_inline_asm(self: Any, code: str, constraints: str, handles: Any, *more: Any) -> Any:
    """Run the instructions that Inductor writes as assembly, which the interpreter lacks."""
    with np.errstate(all="ignore"):
        found = _ASSEMBLY[code.split()[0]](*(handle.data for handle in handles))
    return SimpleNamespace(get_result=lambda at: interpreter.TensorHandle(found, handles[0].dtype))


interpreter.InterpreterBuilder.create_inline_asm = _create_inline_asm
interpreter._patch_lang_tensor = _patch_lang_tensor
interpreter.InterpreterBuilder.create_atomic_rmw = _create_atomic_rmw

_OF_TORCH = ("erf", "erfc", "hypot", "copysign", "lgamma", "tan", "asin", "acos", "sinh", "cosh")
_MATH: dict[str, Any] = {
    "rsqrt": lambda x: 1 / np.sqrt(x),
    **{name: getattr(np, name) for name in ("tanh", "exp", "log", "log1p", "expm1", "sqrt", "cos", "sin")},
    **{name: getattr(np, name) for name in ("rint", "trunc", "floor", "ceil", "exp2", "log2")},
    **{
        name: lambda *x, name=name: getattr(torch, name)(*map(torch.from_numpy, x)).numpy()
        for name in _OF_TORCH
    },
    "pow": np.power,
    "nearbyint": np.rint,
    "fmod": np.fmod,
    "atan": np.arctan,
    "atan2": np.arctan2,
    "isnan": np.isnan,
    "isinf": np.isinf,
    "signbit": np.signbit,
}


class _Libdevice:
    """Functions of libdevice, which the interpreter lacks, in NumPy."""

    def __getattr__(self, name: str) -> Any:
        def call(*args: Any) -> Any:
            values = [arg.handle.data if isinstance(arg, tl.tensor) else arg for arg in args]
            with np.errstate(all="ignore"):
                found = np.asarray(_MATH[name](*values))
            kind, is_test = args[0].type, found.dtype == np.bool_
            scalar = tl.int32 if is_test else kind.scalar
            found = found.astype(np.int32 if is_test else values[0].dtype)
            block = tl.block_type(scalar, kind.shape) if kind.is_block() else scalar
            return tl.tensor(interpreter.TensorHandle(found, scalar), block)

        return call


_NUMBERS: dict[str, tuple[Any, Any, Any]] = {
    "i8": (ctypes.c_int8, tl.int8, np.int8),
    "i1": (ctypes.c_int8, tl.int1, np.bool_),
    "i32": (ctypes.c_int32, tl.int32, np.int32),
    "i64": (ctypes.c_int64, tl.int64, np.int64),
    "fp32": (ctypes.c_float, tl.float32, np.float32),
    "fp64": (ctypes.c_double, tl.float64, np.float64),
}


class Kernel:
    """A Triton kernel, from what tests.e2e.noted_kernels wrote about it."""

    def __init__(self, facts: dict[str, Any], folder: Path) -> None:
        self.facts = facts
        path = folder / f"{facts['name']}.py"
        sources = [*facts["helpers"], facts["source"]]
        path.write_text("\n".join(f"@triton.jit\n{source}" for source in sources))
        scope: dict[str, Any] = {
            "triton": triton,
            "tl": tl,
            "triton_helpers": triton_helpers,
            "tl_math": triton_helpers.math,
            "libdevice": _Libdevice(),
            "__name__": facts["name"],
        }
        exec(compile(path.read_text(), str(path), "exec"), scope)
        self.function = scope[facts["function"]]

    def launch(self, grid: tuple[int, int, int], args: Any) -> None:
        """Run each block of the grid. `args` are pointers to the arguments, as cuLaunchKernel takes them."""
        values: dict[str, Any] = {}
        for at, name in enumerate(self.facts["arguments"]):
            kind = self.facts["signature"][name]
            if kind.startswith("*"):
                element = tl.str_to_ty(kind, None)
                address = ctypes.cast(args[at], ctypes.POINTER(ctypes.c_uint64))[0]
                values[name] = _tensor(np.array([address], np.uint64), element)
            else:
                c_type, element, dtype = _NUMBERS[kind]
                number = ctypes.cast(args[at], ctypes.POINTER(c_type))[0]
                values[name] = _tensor(np.array([number], dtype), element)
        for name, value in self.facts["folded"].items():
            values.setdefault(name, _tensor(np.array([value], np.int32), tl.int32))
        values |= {name: tl.constexpr(value) for name, value in self.facts["constants"].items()}
        values = {name: value for name, value in values.items() if name in self.function.arg_names}
        function = self.function.rewrite()
        scope = interpreter._patch_lang(function)
        try:
            interpreter.interpreter_builder.set_grid_dim(*grid)
            for place in np.ndindex(grid):
                interpreter.interpreter_builder.set_grid_idx(*place)
                function(**values)
        finally:
            scope.restore()


def _tensor(data: Any, element: Any) -> Any:
    return tl.tensor(interpreter.TensorHandle(data, element), element)


class Simulation:
    """A package, loaded as if the CPU were the GPU."""

    def __init__(self, folder: Path) -> None:
        facts = json.loads((folder / "kernels.json").read_text())
        self.folder, self.error = folder, False
        self.kernels = {each["name"]: Kernel(each, folder) for each in facts}
        kind = ctypes.CFUNCTYPE(
            ctypes.c_int, ctypes.c_char_p, *[ctypes.c_uint] * 5, ctypes.POINTER(ctypes.c_void_p)
        )
        self._launch = kind(self._on_launch)
        driver.sim_set(self._launch)
        self._replace_torch()
        self.loader = torch._C._aoti.AOTIModelPackageLoader(str(self._for_cpu()), self.code, False, 1, -1)

    def bind(self, weights: dict[str, torch.Tensor]) -> None:
        names = set(self.loader.get_constant_fqns())
        assert names <= weights.keys(), names - weights.keys()  # A tied weight has several names.
        self.loader.load_constants({name: weights[name] for name in names}, False, True, True)

    def run(self, inputs: list[torch.Tensor]) -> list[torch.Tensor]:
        found: list[torch.Tensor] = self.loader.boxed_run(list(inputs))
        assert not self.error
        return found

    def _for_cpu(self) -> Path:
        out = self.folder / "package_cpu.pt2"
        with zipfile.ZipFile(self.folder / "package.pt2") as old, zipfile.ZipFile(out, "w") as new:
            for entry in old.infolist():
                data = old.read(entry)
                if entry.filename.endswith("_metadata.json"):
                    data = json.dumps({**json.loads(data), "AOTI_DEVICE_KEY": "cpu"}).encode()
                new.writestr(entry.filename, data)
        return out

    def _replace_torch(self) -> None:
        """Load a library that has torch's CUDA kernels, which jump to their CPU siblings."""
        library = self.folder / "wrapper.so"
        with zipfile.ZipFile(self.folder / "package.pt2") as opened:
            name = max(name for name in opened.namelist() if name.endswith(".so"))
            library.write_bytes(opened.read(name))
        self.code = name.split("/")[-2]  # Of several, the last.
        libraries = Path(torch.__file__).parent / "lib"
        has = set(
            re.findall(r"aoti_torch_cpu_\w+", _symbols("--defined-only", libraries / "libtorch_cpu.so"))
        )
        source = _TORCH
        for wanted in sorted(set(re.findall(r"aoti_torch_cuda_\w+", _symbols("--undefined-only", library)))):
            sibling = wanted.replace("aoti_torch_cuda_", "aoti_torch_cpu_")
            if f"int {wanted}(" in source:
                continue
            assert sibling in has, f"{wanted} has no sibling for the CPU"
            code = f"{wanted}: jmp *{sibling}@GOTPCREL(%rip)"
            source += f'asm(".globl {wanted}\\n.type {wanted},@function\\n{code}\\n");\n'
        link = ("-Wl,-soname,libtorch_cuda.so", f"-L{libraries}", "-ltorch_cpu", f"-Wl,-rpath,{libraries}")
        self._shim = ctypes.CDLL(_built(self.folder, "torch_shim", source, *link), ctypes.RTLD_GLOBAL)
        pointers = (*[ctypes.c_void_p] * 4, ctypes.c_int, ctypes.POINTER(ctypes.c_double))
        kind = ctypes.CFUNCTYPE(ctypes.c_int, *pointers, ctypes.POINTER(ctypes.c_void_p))
        self._attention = kind(self._on_attention)
        self._shim.sim_set_attention(self._attention)
        self._shim.aoti_torch_new_tensor_handle.argtypes = [ctypes.c_void_p, ctypes.POINTER(ctypes.c_void_p)]

    def _on_launch(self, name: bytes, x: int, y: int, z: int, threads: int, shared: int, args: Any) -> int:
        try:
            kernel = self.kernels[name.decode()]
            assert threads == 32 * kernel.facts["warps"]
            assert shared == kernel.facts["shared"]
            kernel.launch((x, y, z), args)
        except BaseException:
            return self._failed()
        return 0

    def _on_attention(self, q: int, k: int, v: int, bias: int, causal: int, scale: Any, out: Any) -> int:
        try:
            query, key, value = map(self._of_handle, (q, k, v))
            mask = self._of_handle(bias).to(query.dtype) if bias else None
            found = torch.nn.functional.scaled_dot_product_attention(
                query, key, value, mask, is_causal=bool(causal), scale=scale[0] if scale else None
            )
            if out[1]:  # The memory-efficient kernel lays it out as batch, length, heads, size.
                found = found.transpose(1, 2).contiguous().transpose(1, 2)
            else:  # The flash kernel lays it out as the query.
                found = torch.empty_like(query).copy_(found)
            capsule = torch._C._aoti.unsafe_alloc_void_ptr_from_tensor(found)
            read = ctypes.pythonapi.PyCapsule_GetPointer
            read.restype, read.argtypes = ctypes.c_void_p, [ctypes.py_object, ctypes.c_char_p]
            out[0] = read(capsule, None)
        except BaseException:
            return self._failed()
        return 0

    def _of_handle(self, handle: int) -> torch.Tensor:
        copy = ctypes.c_void_p()
        assert self._shim.aoti_torch_new_tensor_handle(handle, ctypes.byref(copy)) == 0
        new = ctypes.pythonapi.PyCapsule_New
        new.restype, new.argtypes = ctypes.py_object, [ctypes.c_void_p, ctypes.c_char_p, ctypes.c_void_p]
        return torch._C._aoti.alloc_tensor_by_stealing_from_void_ptr(new(copy.value, None, None))

    def _failed(self) -> int:
        traceback.print_exc()
        self.error = True
        return 1


def _symbols(which: str, library: Path) -> str:
    return subprocess.run(["nm", "-D", which, library], capture_output=True, text=True, check=True).stdout


def simulate(folder: Path) -> None:
    """Run the calls in the folder, one after the other."""
    torch.set_num_threads(1)
    simulation = Simulation(folder)
    weights = load_file(folder / "weights.safetensors")
    simulation.bind(weights)
    for path in sorted(folder.glob("inputs-*.safetensors")):
        given = load_file(path)
        outputs = simulation.run([given[name] for name in sorted(given)])
        named = {f"{at:03}": each.contiguous().clone() for at, each in enumerate(outputs)}
        save_file(named, folder / path.name.replace("inputs", "outputs"))


def _simulate_each() -> None:
    for folder in (Path(line.strip()) for line in sys.stdin):
        if os.fork() == 0:
            code = 1
            try:
                with (folder / "log").open("w") as log:
                    os.dup2(log.fileno(), 1)
                    os.dup2(log.fileno(), 2)
                simulate(folder)
                code = 0
            except BaseException:
                traceback.print_exc()
            finally:
                sys.stderr.flush()
                os._exit(code)
        print(os.wait()[1], flush=True)


if __name__ == "__main__":
    simulate(Path(sys.argv[1])) if sys.argv[1:] else _simulate_each()
