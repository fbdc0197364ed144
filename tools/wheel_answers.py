"""Record what CUDA wheels of torch report about themselves, for `_torch/emulation/wheel_answers.py`.

    python tools/wheel_answers.py CPU_PYTHON CUDA_PYTHON [CUDA_PYTHON ...]

Each argument is the Python interpreter of an environment. The first has the CPU wheel of torch, the second
the CUDA wheel of the same version, and any others CUDA wheels of different versions. No GPU is needed. The
script finds every function and constant of torch whose name asks a question, such as `is_available` or
`version`, evaluates it in each environment, and keeps the answers that differ between the two wheels. For
answers that depend on the GPU, `torch.cuda` is replaced by a stand-in for each compute capability.

Functions with arguments are not called. The test in tests/torch_facts/test_wheel_answers.py lists them.
"""

from __future__ import annotations

import argparse
import ast
import functools
import importlib
import json
import re
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from types import SimpleNamespace
from typing import Any

PAGE = Path("src/fakexport/_torch/emulation/wheel_answers.toml")
CAPABILITIES = ((6, 0), (7, 0), (7, 5), (8, 0), (8, 6), (8, 9), (9, 0), (10, 0), (10, 3), (12, 0))

_ASKS = re.compile(
    r"^(?:(?:is|has|can|supports)_|get_\w*version$|version$|get_arch_list$|get_gencode_flags$|preferred_)"
    r"|_(?:available|supported|enabled|built|version|is_enabled)$"
)
_FOLDERS = ("backends", "cpu", "cuda", "distributed", "mps", "mtia", "utils", "xpu")
# Modules without questions about devices: formats, planners, launchers, and developer tools.
_LEFT_OUT = re.compile(
    r"torch\.distributed\.(?:_composable|_local_tensor|_pycute|_shard|_sharded_tensor|_sharding_spec|_state_dict"
    r"|_tensor|_tools|algorithms|checkpoint|elastic|flight_recorder|fsdp|launcher|nn|optim|pipelining|tensor)\b"
    r"|torch\.utils\.(?:_cxx_pytree|_pytree|_sympy|benchmark|bottleneck|collect_env|data|hipify|jit|model_dump"
    r"|tensorboard|viz|_strobelight)\b|_testing\b|_utils\b.*test"
)


def questions(root: Path) -> Iterator[tuple[str, str, bool]]:
    """Yield the module and name of each function that asks a question, and whether it needs arguments.

    Args:
        root: The folder of torch.
    """
    for path in sorted(root.rglob("*.py")):
        parts = path.relative_to(root).with_suffix("").parts
        module = ".".join(("torch", *parts)).removesuffix(".__init__")
        if (parts[0] not in _FOLDERS and parts != ("version",)) or _LEFT_OUT.search(module):
            continue
        for node in ast.parse(path.read_text()).body:
            if isinstance(node, ast.FunctionDef) and _asks(node.name):
                arguments = node.args
                needed = len(arguments.posonlyargs + arguments.args) - len(arguments.defaults)
                yield module, node.name, bool(needed or None in arguments.kw_defaults)


def _asks(name: str) -> bool:
    return name == "_is_compiled" or (not name.startswith(("_", "set_")) and bool(_ASKS.search(name)))


def constants() -> Iterator[tuple[str, str]]:
    """Yield the module and name of each constant of torch whose name asks a question."""
    import torch

    for module in (torch._C, torch.cuda, torch.xpu, torch.mps):
        for name, value in vars(module).items():
            if isinstance(value, bool) and name.lstrip("_").startswith(("has_", "is_")):
                yield module.__name__, name
    yield from (("torch.version", name) for name in ("cuda", "hip", "xpu") if hasattr(torch.version, name))
    yield from (("torch._C", name) for name in vars(torch._C) if re.fullmatch(r"_is_\w+_available", name))


def answers() -> dict[str, dict[str, str]]:
    """Return the answers of this process as Python literals, by capability. Omit functions that raise."""
    import torch
    from torch._dynamo import device_interface

    root = Path(torch.__file__).parent
    asked = [(module, name) for module, name, has_arguments in questions(root) if not has_arguments]
    known: dict[str, dict[str, str]] = {}
    for capability in (None, *CAPABILITIES):
        device_interface.caching_worker_device_properties.clear()
        if capability is not None:
            _stand_in(torch.cuda, capability)
        found = known["" if capability is None else "{}.{}".format(*capability)] = {}
        for module in {module for module, _ in asked}:
            for value in vars(importlib.import_module(module)).values():
                if type(value) is functools._lru_cache_wrapper:
                    value.cache_clear()
        for module, name in [*asked, *constants()]:
            try:
                value = getattr(importlib.import_module(module), name)
                answer = value() if callable(value) else value
                ast.literal_eval(repr(answer))
            except (Exception, SystemExit):
                continue
            found[f"{module}.{name}"] = repr(answer)
    return known


def _stand_in(cuda: Any, capability: tuple[int, int]) -> None:
    major, minor = capability
    properties = SimpleNamespace(major=major, minor=minor, name="stand-in")
    cuda.is_available = lambda: True
    cuda.device_count = lambda: 1
    cuda.current_device = lambda: 0
    cuda.get_device_capability = lambda device=None: capability
    cuda.get_device_properties = lambda device=None: properties


def _asked_with(python: str) -> tuple[str, dict[str, dict[str, str]]]:
    """Return the version of torch in an environment, and its answers."""
    command = [python, str(Path(__file__).resolve()), "--ask"]
    done = subprocess.run(command, capture_output=True, text=True, cwd="/", check=True)
    version, found = json.loads(done.stdout.splitlines()[-1])
    return version, found


def _table(version: str, found: dict[str, dict[str, str]], names: set[str]) -> Iterator[str]:
    yield f'["{".".join(version.split(".")[:2])}"]'
    yield f'wheel = "{version}"'
    for name in sorted(names):
        by_capability = {key: answers[name] for key, answers in found.items() if key and name in answers}
        if not by_capability:
            continue
        values = set(by_capability.values())
        row = ", ".join(f'"{key}" = {json.dumps(value)}' for key, value in by_capability.items())
        yield f'"{name}" = ' + (json.dumps(values.pop()) if len(values) == 1 else f"{{ {row} }}")


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("pythons", nargs="*")
    parser.add_argument("--ask", action="store_true", help=argparse.SUPPRESS)
    asked = parser.parse_args()
    if asked.ask:
        import torch

        sys.stdout.write(json.dumps((torch.__version__, answers())) + "\n")
        return
    (_, ours), *cuda = map(_asked_with, asked.pythons)
    theirs = cuda[0][1]
    names = {
        name
        for capability, found in theirs.items()
        for name, answer in found.items()
        if ours[capability].get(name) != answer
    }
    known = set().union(*ours.values())
    lines = [
        "# Written by tools/wheel_answers.py: what each CUDA wheel answers, as Python literals. Do not edit."
    ]
    for version, found in cuda:
        new = set().union(*found.values()) - known  # Questions of a later version.
        lines += ["", *_table(version, found, names | new)]
    PAGE.write_text("\n".join(lines) + "\n")


if __name__ == "__main__":
    main()
