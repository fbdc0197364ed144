"""A program as a Python file that people can read, run and step through."""

from __future__ import annotations

import ast
import json
import os
import re
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

import torch
from torch.export import ExportedProgram

from fakexport._torch.tracing_lock import one_at_a_time
from fakexport.error import InvalidValue
from fakexport.files import new_file
from fakexport.program import devices, library_operators, walk

from .class_text import ClassWriter
from .error import PythonSourceError
from .literal_text import usual_device
from .module_tree import Entry, held_at, module_tree
from .names import comment_text
from .operation_text import torch_module
from .reading import read_program
from .regions import regions_of
from .root_text import RootText, root_text


@dataclass(frozen=True)
class PythonSource:
    """A program as Python.

    Args:
        text: The file.
        constants: The content of the `.safetensors` file that must be next to it, with those constants that
            are too large for the text; None where there are none. Weights are never in it.
    """

    text: str
    constants: bytes | None

    def __str__(self) -> str:
        return self.text


@one_at_a_time
def source(program: ExportedProgram) -> PythonSource:
    """Return the program as Python source: one class per module, with its weights' names and source lines.

    Modules with the same text share a class. `Program(device=...)` makes it with weights that have no values;
    `load_state_dict` takes the checkpoint of the original model; calling it returns what the program returns,
    bit for bit. The text needs torch, and the libraries of the operators that the program calls.

    Names in the program become identifiers, literals or comments only, so that an untrusted program is safe
    to write.

    Args:
        program: With fake or real weights; not changed. From `export`, `load` or `torch.export.export`.
    Returns:
        The text and the constants: the same for the same program. Files of the model are named relative to
        the working directory, as in an archive.
    Raises:
        PythonSourceError: it contains something that Python source cannot express: an object of a C++ class,
            an effect token, a sparse weight, a weight with a name that a module cannot have.

    Example:
        >>> from fakexport.capture import export
        >>> program = export(lambda: torch.nn.Linear(4, 2), (torch.zeros(3, 4),))
        >>> print(source(program).text.splitlines()[-4].strip())
        return linear
    """
    reading = read_program(program)
    region = regions_of(reading.body)
    tree = module_tree(program, region)
    writer = ClassWriter(tree, reading.kinds, frozenset(_devices(program)))
    for node in tree.root.walk():
        if node is not tree.root and not node.is_container:
            writer.write(node)
    root = root_text(program, reading, writer)
    constants = constants_file(writer.in_file)
    text = _file(program, root, writer, has_constants=constants is not None)
    try:
        ast.parse(text)
    except (SyntaxError, RecursionError) as error:  # The last net: no text is better than a wrong one.
        raise PythonSourceError(
            f"the generated source of this program is not valid Python: {error}"
        ) from error
    return PythonSource(text, constants)


def write_source(program: ExportedProgram, path: str | os.PathLike[str]) -> PythonSource:
    """Write a program as a Python file, and the constants that are too large for the text next to it.

    Args:
        program: As for `source`.
        path: The file: `program.py`, replaced as a whole. Constants go to `program.safetensors`.
    Returns:
        What was written.
    Raises:
        PythonSourceError: the program cannot be written as Python source.
        ValueError: the file would be called `.safetensors`.
        FileWriteError: it cannot be written.

    Example:
        >>> import torch; from fakexport.capture import export
        >>> program = export(lambda: torch.nn.Linear(4, 2), (torch.zeros(3, 4),))
        >>> _ = write_source(program, "/tmp/linear.py")
    """
    target = Path(path)
    if target.suffix == ".safetensors":
        raise InvalidValue(f"{target}: choose another suffix; .safetensors is for the file of constants")
    written = source(program)
    if written.constants is not None:
        with new_file(target.with_suffix(".safetensors")) as file:
            file.write(written.constants)
    with new_file(target) as file:
        file.write(written.text.encode())
    return written


def _devices(program: ExportedProgram) -> Iterator[str]:
    """Yield the devices of literals, weights and constants."""
    for literal in devices(program):
        if literal.device != "meta":
            yield usual_device(literal.device)
    for tensor in (*program.state_dict.values(), *program.constants.values()):
        if isinstance(tensor, torch.Tensor):
            yield usual_device(str(tensor.device))


def _file(program: ExportedProgram, root: RootText, writer: ClassWriter, *, has_constants: bool) -> str:
    libraries = list(dict.fromkeys(name.partition(".")[0] for name in library_operators(program)))
    lines = [f'"""{root.name}, a program of torch.export.', ""]
    lines += ["    program = Program()", "    program.load_state_dict(weights)", "    program(...)"]
    if libraries:
        lines += ["", "Import these operator libraries first: " + ", ".join(libraries) + "."]
    if has_constants:
        lines += ["", "Constants of the program are in the .safetensors file next to this one."]
    if root.foreign:
        names = ", ".join(comment_text(name).replace("\\", "/").replace('"', "'") for name in root.foreign)
        lines += ["", f"These output containers of the program are plain containers here: {names}."]
    lines += ['"""', ""]
    definitions = [*([LOADER.strip()] if has_constants else ()), *writer.texts, root.text]
    if root.name != "Program":
        definitions.append(f"Program = {root.name}")
    body = "\n\n\n".join(definitions)
    lines += _imports(body, _modules(program))
    return "\n".join([*lines, "", "aten = torch.ops.aten", "", "", body, ""])


def _modules(program: ExportedProgram) -> set[str]:
    """Return the modules of torch whose functions are called."""
    found = {torch_module(visit.node.target) for visit in walk(program) if visit.node.op == "call_function"}
    return {name for name in found if name is not None}


def _imports(body: str, modules: set[str]) -> list[str]:
    """Return the imports that the text makes use of.

    For a name that only looks like a use, there is one too many.
    """
    standard = [f"import {name}" for name in ("json", "math", "operator") if f"{name}." in body]
    taken = {"collections": ("OrderedDict",), "math": ("inf", "nan"), "pathlib": ("Path",)}
    for module, names in taken.items():
        taken_names = [name for name in names if re.search(rf"\b{name}\b", body)]
        standard += [f"from {module} import {', '.join(taken_names)}"] if taken_names else []
    used = [f"import {name}" for name in sorted(modules) if f"{name}." in body]
    of_torch = ["import torch", *used, "from torch import nn"]
    if "pytree." in body:
        of_torch.append("from torch.utils import _pytree as pytree")
    return [*standard, *([""] if standard else ()), *of_torch]


LOADER = '''
def load_constants(module):
    """Read the constants from the .safetensors file next to this one."""
    content = Path(__file__).with_suffix(".safetensors").read_bytes()
    start = 8 + int.from_bytes(content[:8], "little")
    for name, entry in json.loads(content[8:start]).items():
        begin, end = entry["data_offsets"]
        constant = module
        for part in name.split("."):
            constant = getattr(constant, part)
        values = torch.frombuffer(bytearray(content[start + begin : start + end]), dtype=constant.dtype)
        constant.as_strided((values.numel(),), (1,)).copy_(values)
'''

_NAMES = {
    torch.bool: "BOOL",
    torch.uint8: "U8",
    torch.int8: "I8",
    torch.int16: "I16",
    torch.int32: "I32",
    torch.int64: "I64",
    torch.float16: "F16",
    torch.bfloat16: "BF16",
    torch.float32: "F32",
    torch.float64: "F64",
}


def constants_file(entries: Sequence[Entry]) -> bytes | None:
    """Return the content of the file, with the memory of each tensor.

    None where there is nothing to store.
    """
    header: dict[str, object] = {}
    content = bytearray()
    for entry in entries:
        if entry.value is None or entry.value.numel() == 0:
            continue
        data, count = _memory(entry.value)
        dtype = _NAMES.get(entry.value.dtype)
        header[held_at(entry)] = {
            "dtype": dtype or "U8",
            "shape": [count if dtype else len(data)],
            "data_offsets": [len(content), len(content) + len(data)],
        }
        content += data
    if not header:
        return None
    text = json.dumps(header, separators=(",", ":")).encode()
    text += b" " * (-len(text) % 8)
    return len(text).to_bytes(8, "little") + text + bytes(content)


def _memory(value: torch.Tensor) -> tuple[bytes, int]:
    """Return the bytes from the first element to the last, and how many elements that are."""
    count = 1 + sum((size - 1) * stride for size, stride in zip(value.shape, value.stride(), strict=True))
    flat = value.as_strided((count,), (1,), value.storage_offset())
    return flat.contiguous().view(torch.uint8).numpy().tobytes(), count
