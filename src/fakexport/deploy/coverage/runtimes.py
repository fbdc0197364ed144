"""The runtimes that can be asked. The command line needs this list before it imports torch."""

from __future__ import annotations

import importlib.util
from collections.abc import Iterable, Mapping
from dataclasses import dataclass

from fakexport.error import InvalidValue


@dataclass(frozen=True)
class Runtime:
    """A runtime that can be asked about a program.

    Args:
        packages: Import names of the packages that answer. Each has the same name on PyPI. Without packages,
            a table answers.
        rule: Code of the diagnostic for a program that the runtime does not take; "" if it takes any program.
    """

    packages: tuple[str, ...]
    rule: str


RUNTIMES: Mapping[str, Runtime] = {
    "aoti": Runtime(("torch",), "FE803"),
    "coreml": Runtime(("coremltools",), "FE805"),
    "executorch": Runtime(("executorch",), "FE801"),
    "executorch:coreml": Runtime(("executorch", "coremltools"), "FE801"),
    "executorch:xnnpack": Runtime(("executorch",), "FE801"),
    "litert": Runtime(("litert_torch", "ai_edge_litert"), "FE806"),
    "onnx": Runtime(("onnx", "onnxscript", "onnxruntime"), "FE802"),
    "tensorrt": Runtime((), ""),
}
"""The runtimes by name, as for `fakexport check --runtime`."""


def check_runtimes(names: Iterable[str]) -> tuple[str, ...]:
    """Return the names without duplicates.

    Raises:
        ValueError: A runtime is unknown.
        ModuleNotFoundError: The package of a runtime is not installed.
    """
    found = tuple(dict.fromkeys(names))
    for name in found:
        if name not in RUNTIMES:
            raise InvalidValue(f"unknown runtime {name!r}; choose from {', '.join(RUNTIMES)}")
        for package in RUNTIMES[name].packages:
            if importlib.util.find_spec(package) is None:
                importlib.import_module(package)  # It raises.
    return found


def versions_of(runtime: str) -> str:
    """Return the packages that answer for a runtime: `onnxscript 0.7.2, onnxruntime 1.31.1`."""
    from importlib.metadata import version  # `--help` lists the runtimes, and needs no version.

    if not RUNTIMES[runtime].packages:
        from .tensorrt import table

        return f"torch-{runtime} {table()['version']}"
    packages = (package.replace("_", "-") for package in RUNTIMES[runtime].packages)
    return ", ".join(f"{package} {version(package)}" for package in packages)
