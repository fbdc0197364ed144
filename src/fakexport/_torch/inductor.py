"""AOTInductor: compiling a graph to native code, and calling what came out. Seen on torch 2.13.

Source: `torch/_inductor/__init__.py`, `compile_fx.py`, `graph.py`, `codecache.py`, `cpp_builder.py`;
`torch/csrc/inductor/aoti_package/model_package_loader.h`.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

import torch
from torch.fx import GraphModule, Node

# Else the code depends on values of weights that are bound later: `GraphLowering.get_attr` writes small
# constants into it.
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
) -> tuple[Path, ...]:
    """Compile a graph ahead of time; the files that make a package.

    The sizes of the inputs are those noted at the placeholders; of the examples only the devices count.

    Args:
        graph: `ExportedProgram.module(check_guards=False)`. It is changed.
        args, kwargs: Example inputs.
        folder: Where the files go. Headers that are compiled once are kept in Inductor's own folder.
        has_weights: Whether the values of weights and constants go into the code; else they are bound later,
            all of them, and the code depends on none.
    Raises:
        Exception: what Inductor raises; see `failed_node` and `root_cause`.
    """
    from torch._inductor import aot_compile

    options = {**compile_options(graph, has_weights=has_weights), "aot_inductor.output_path": str(folder)}
    with torch.no_grad():
        files: Any = aot_compile(graph, args, dict(kwargs), options=options)
    return tuple(Path(file) for file in files if isinstance(file, str) and file)


def compile_options(graph: GraphModule, *, has_weights: bool) -> dict[str, Any]:
    """Return Inductor's options, on which depends which buffers it plans."""
    options: dict[str, Any] = {
        "aot_inductor.package": True,
        "aot_inductor.metadata": {},  # Inductor writes into it, and the default is one for all compilations.
        # It takes tensors of one element for constants even where they are weights that are bound later, or
        # buffers that the program writes into, whose new values are then lost.
        "joint_graph_constant_folding": False,
        **({} if has_weights else _WITHOUT_VALUES),
    }
    if all(node.meta["val"].device.type == "cpu" for node in _tensors(graph)):
        options["compile_threads"] = 1  # Nothing is compiled in parallel for a CPU; the pool takes memory.
    return options


def _tensors(graph: GraphModule) -> Iterator[Node]:
    return (node for node in graph.graph.nodes if isinstance(node.meta.get("val"), torch.Tensor))


def compiler_command() -> str | None:
    """Return the C++ compiler that Inductor takes, or None where it finds none that works."""
    from torch._inductor.cpp_builder import get_cpp_compiler
    from torch._inductor.exc import InvalidCxxCompiler

    try:
        command: str = get_cpp_compiler()
    except InvalidCxxCompiler:
        return None
    return command


def is_compiler_fault(error: BaseException) -> bool:
    """Return whether it says that the C++ compiler failed; its output is in the text."""
    from torch._inductor.exc import CppCompileError

    return isinstance(error, CppCompileError)


def root_cause(error: BaseException) -> BaseException:
    """Return what Inductor wrapped in errors of its own.

    The compiler's fault with its output, if it is one.
    """
    seen: set[int] = set()
    while not is_compiler_fault(error) and id(error) not in seen:
        seen.add(id(error))
        error = getattr(error, "inner_exception", None) or error.__cause__ or error
    return error


def failed_node(error: BaseException) -> Node | None:
    """Return the node that was being compiled, from the innermost frame of Inductor's that has one."""
    found: Node | None = None
    trace = error.__traceback__
    while trace is not None:
        module = str(trace.tb_frame.f_globals.get("__name__"))
        if module.startswith(("torch._inductor.", "torch.fx.interpreter")):
            found = _node_in(trace.tb_frame.f_locals) or found
        trace = trace.tb_next
    return found


def _node_in(variables: Mapping[str, Any]) -> Node | None:
    """Return the node that an interpreter has as `n`, or that is noted at the kernel, `self`."""
    noted = getattr(variables.get("self"), "__dict__", {})
    places = (variables.get("n"), noted.get("fx_node"), noted.get("origin_node"))
    return next((node for node in places if isinstance(node, Node)), None)


class AotiPackage:
    """A package whose native code is loaded into this process. What it says is run by loading it.

    Args:
        path: The package.
        device_index: Which device of its type; -1 is the one that it was compiled for.
    Raises:
        RuntimeError: it cannot be loaded.
    """

    def __init__(self, path: Path, *, device_index: int = -1) -> None:
        self._loader = torch._C._aoti.AOTIModelPackageLoader(str(path), "model", False, 1, device_index)

    @property
    def constant_names(self) -> tuple[str, ...]:
        """The names of the weights and constants that it uses, tied ones once."""
        return tuple(self._loader.get_constant_fqns())

    def bind(self, tensors: Mapping[str, torch.Tensor]) -> None:
        """Return it all weights and constants, which it uses where they are: nothing is copied.

        Names, dtypes, shapes and strides must be right; that is not checked.
        """
        self._loader.load_constants(dict(tensors), False, True, True)

    def run(self, inputs: Sequence[torch.Tensor]) -> list[torch.Tensor]:
        """Return the leaves of the outputs for the tensors of the flat call, whose layout must be right.

        A package without its weights ends the process.
        """
        result: list[torch.Tensor] = self._loader.boxed_run(list(inputs))
        return result
