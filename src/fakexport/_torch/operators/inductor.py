"""Compile a graph with AOTInductor and run the result. Seen on torch 2.13.

Source: `torch/_inductor/__init__.py`, `compile_fx.py`, `graph.py`, `codecache.py`, `cpp_builder.py`;
`torch/csrc/inductor/aoti_package/model_package_loader.h`.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from types import MappingProxyType
from typing import Any

import torch
from torch.fx import GraphModule, Node

from fakexport._torch.patching import Patches

# Without these options, the code would depend on the values of weights that are bound later, because
# `GraphLowering.get_attr` writes small constants into the code.
_WITHOUT_VALUES = {
    "aot_inductor.package_constants_in_so": False,
    "always_keep_tensor_constants": True,
}


def compile_graph(
    graph: GraphModule,
    args: tuple[Any, ...],
    kwargs: Mapping[str, Any],
    folder: Path,
    *,
    has_weights: bool,
    options: Mapping[str, Any] = MappingProxyType({}),
) -> tuple[Path, ...]:
    """Compile a graph ahead of time and return the files of the package.

    Input sizes are read from the placeholders. The example inputs determine only the devices.

    Args:
        graph: `ExportedProgram.module(check_guards=False)`. It is modified.
        folder: Output folder. Precompiled headers are cached in Inductor's own folder.
        has_weights: Whether to embed the values of weights and constants. If False, all of them are bound
            later, and the code does not depend on their values.
        options: Further options of Inductor.
    Raises:
        Exception: Any error that Inductor raises; see `failed_node` and `root_cause`.
    """
    from torch._inductor import aot_compile

    own = compile_options(graph, has_weights=has_weights)
    options = {**own, **options, "aot_inductor.output_path": str(folder)}
    with torch.no_grad():
        files: Any = aot_compile(graph, args, dict(kwargs), options=options)
    return tuple(Path(file) for file in files if isinstance(file, str) and file)


class Stopped(Exception):
    """Raised in Inductor to stop it, with the value that is wanted from it."""

    def __init__(self, value: Any) -> None:
        super().__init__()
        self.value = value


def stopped_with(error: BaseException) -> Stopped | None:
    """Return the `Stopped` that is wrapped in an error of Inductor, or None."""
    found: BaseException | None = error
    while found is not None and not isinstance(found, Stopped):
        found = getattr(found, "inner_exception", None) or found.__cause__ or found.__context__
    return found


def without_compiler() -> dict[tuple[Any, str], Any]:
    """Return replacements for functions of Inductor that run the C++ compiler to find its vendor and the
    supported vector instructions.
    """
    from torch._inductor import cpp_builder, cpu_vec_isa

    return {
        (cpu_vec_isa, "pick_vec_isa"): _vectors(cpu_vec_isa.pick_vec_isa),
        (cpp_builder, "get_cpp_compiler"): lambda: "c++",
    }


def _vectors(own: Callable[[], Any]) -> Callable[[], Any]:
    """Return a replacement for `pick_vec_isa` that uses the CPU flags and does not run a compiler."""
    from torch._inductor.cpu_vec_isa import supported_vec_isa_list, x86_isa_checker

    flags = x86_isa_checker()
    known = [isa for isa in supported_vec_isa_list if flags and set(str(isa).split()) <= set(flags)]
    return (lambda: known[0]) if known else own


def generated_calls(
    graph: GraphModule,
    args: tuple[Any, ...],
    kwargs: Mapping[str, Any],
    *,
    options: Mapping[str, Any] = MappingProxyType({}),
) -> tuple[str, ...]:
    """Generate the code for a graph like `compile_graph`, but compile neither C++ nor Triton.

    For a GPU, Inductor stops before the kernels are compiled, so the host code is not generated either.

    Returns:
        The operators that the code calls because Inductor does not generate code for them, once per call.
    Raises:
        Exception: Any error that Inductor raises; see `failed_node` and `root_cause`.
    """
    from torch._inductor import aot_compile
    from torch._inductor.codecache import AotCodeCompiler
    from torch._inductor.codegen.wrapper import PythonWrapperCodegen
    from torch._inductor.virtualized import V

    def stop(lowering: Any, *_: Any, **__: Any) -> Any:
        raise Stopped(tuple(_fallbacks(lowering)))

    replacements = {
        (AotCodeCompiler, "compile"): staticmethod(stop),
        (PythonWrapperCodegen, "generate_and_run_autotune_block"): lambda wrapper: stop(V.graph),
        **without_compiler(),
    }
    options = {**compile_options(graph, has_weights=False), **options}
    with torch.no_grad(), Patches(replacements):
        try:
            aot_compile(graph, args, dict(kwargs), options=options)
        except Exception as error:
            if (stopped := stopped_with(error)) is None:
                raise
            found: tuple[str, ...] = stopped.value
            return found
    raise RuntimeError("Inductor did not generate code")


def _fallbacks(lowering: Any) -> Iterator[str]:
    from torch._inductor.ir import FallbackKernel

    for operation in lowering.operations:
        if isinstance(operation, FallbackKernel) and operation.op_overload is not None:
            yield str(operation.op_overload)


@contextmanager
def temporary_files_in(folder: Path, *, caches: str) -> Iterator[None]:
    """Put the temporary files of compilers into a folder, because a killed compiler does not delete them.

    Args:
        caches: Folder of Inductor's own cache, unless the user chose a different one.
    """
    from torch._inductor.runtime.cache_dir_utils import default_cache_dir

    own = default_cache_dir()
    if os.environ.get("TORCHINDUCTOR_CACHE_DIR", own) == own:  # Inductor sets it on first use.
        os.environ["TORCHINDUCTOR_CACHE_DIR"] = str(Path(caches, Path(own).name))
    before = os.environ.get("TMPDIR")
    os.environ["TMPDIR"] = str(folder)
    try:
        yield
    finally:
        if before is None:
            del os.environ["TMPDIR"]
        else:
            os.environ["TMPDIR"] = before


def compile_options(graph: GraphModule, *, has_weights: bool) -> dict[str, Any]:
    """Return the options for Inductor. They also affect which buffers Inductor plans."""
    options: dict[str, Any] = {
        "aot_inductor.package": True,
        "aot_inductor.metadata": {},  # Inductor modifies it, and the default is shared by all compilations.
        # Constant folding would treat one-element tensors as constants, even weights that are bound later,
        # and buffers that the program mutates (their new values would be lost).
        "joint_graph_constant_folding": False,
        **({} if has_weights else _WITHOUT_VALUES),
    }
    if all(node.meta["val"].device.type == "cpu" for node in _tensors(graph)):
        options["compile_threads"] = 1  # CPU code is not compiled in parallel, and a pool would take memory.
    return options


def _tensors(graph: GraphModule) -> Iterator[Node]:
    return (node for node in graph.graph.nodes if isinstance(node.meta.get("val"), torch.Tensor))


def compiler_command() -> str | None:
    """Return the C++ compiler that Inductor uses, or None if Inductor finds no working compiler."""
    from torch._inductor.cpp_builder import get_cpp_compiler
    from torch._inductor.exc import InvalidCxxCompiler

    try:
        command: str = get_cpp_compiler()
    except InvalidCxxCompiler:
        return None
    return command


def is_compiler_fault(error: BaseException) -> bool:
    """Return whether an error reports that the C++ compiler failed. Its message has the compiler's output."""
    from torch._inductor.exc import CppCompileError

    return isinstance(error, CppCompileError)


def root_cause(error: BaseException) -> BaseException:
    """Return the original error that Inductor wrapped.

    If the C++ compiler failed, return the error whose message contains the compiler's output.
    """
    seen: set[int] = set()
    while not is_compiler_fault(error) and id(error) not in seen:
        seen.add(id(error))
        error = getattr(error, "inner_exception", None) or error.__cause__ or error
    return error


def failed_node(error: BaseException) -> Node | None:
    """Return the node that was being compiled, from the innermost Inductor frame that has one."""
    found: Node | None = None
    trace = error.__traceback__
    while trace is not None:
        module = str(trace.tb_frame.f_globals.get("__name__"))
        if module.startswith(("torch._inductor.", "torch.fx.interpreter")):
            found = _node_in(trace.tb_frame.f_locals) or found
        trace = trace.tb_next
    return found


def _node_in(variables: Mapping[str, Any]) -> Node | None:
    """Return the node that a frame was processing, given the frame's local variables, or None.

    In an interpreter, the variable `n` is the node. In a kernel, an attribute of `self` is the node.
    """
    noted = getattr(variables.get("self"), "__dict__", {})
    places = (variables.get("n"), noted.get("fx_node"), noted.get("origin_node"))
    return next((node for node in places if isinstance(node, Node)), None)


class AotiPackage:
    """A package whose native code is loaded into this process. Loading a package can execute its code.

    It runs on the device that it was compiled for. `code` is the name of the code in the package.

    Raises:
        RuntimeError: The package cannot be loaded.
    """

    def __init__(self, path: Path, code: str = "model") -> None:
        self._loader = torch._C._aoti.AOTIModelPackageLoader(str(path), code, False, 1, -1)

    @property
    def constant_names(self) -> tuple[str, ...]:
        """The names of the weights and constants that the package uses. A tied weight is listed once."""
        return tuple(self._loader.get_constant_fqns())

    def bind(self, tensors: Mapping[str, torch.Tensor]) -> None:
        """Bind all weights and constants without copying them.

        Names, dtypes, shapes and strides must match; this is not checked.
        """
        self._loader.load_constants(dict(tensors), False, True, True)

    def run(self, inputs: Sequence[torch.Tensor]) -> list[torch.Tensor]:
        """Return the flat outputs.

        Running a package whose weights are not bound crashes the process.

        Args:
            inputs: The flattened input tensors, with the layouts that the code was compiled for.
        """
        result: list[torch.Tensor] = self._loader.boxed_run(list(inputs))
        return result
