"""Write a program as a Python file for people to read, run and debug."""

from __future__ import annotations

import ast
import hashlib
import json
import os
import re
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

import torch
from torch.export import ExportedProgram
from torch.fx import Graph

from fakexport._torch.tracing_lock import one_at_a_time
from fakexport.error import InvalidValue
from fakexport.exporting.program import (
    devices_of_program,
    library_operators,
    walk,
    with_open_modes,
    with_plain_indexing,
)
from fakexport.files import new_file

from .class_text import ClassWriter
from .literal_text import PythonSourceError, usual_device
from .method_text import torch_module
from .module_tree import Entry, module_tree
from .names import comment_text
from .root_text import root_text

_IMPORTS = {
    r"hashlib\.": "import hashlib",
    r"json\.": "import json",
    r"math\.": "import math",
    r"operator\.": "import operator",
    "OrderedDict": "from collections import OrderedDict",
    r"inf\b": "from math import inf",
    r"nan\b": "from math import nan",
    r"Path\(": "from pathlib import Path",
}


@dataclass(frozen=True)
class PythonSource:
    """A program as Python source.

    Args:
        text: The content of the Python file.
        constants: The content of the `.safetensors` file that must be in the same folder. It has the
            constants that are too large for the text, and never contains weights. None if there are no such
            constants.
    """

    text: str
    constants: bytes | None

    def __str__(self) -> str:
        return self.text


@one_at_a_time
def to_python(program: ExportedProgram) -> PythonSource:
    """Return the program as Python source: a class per module, with original weight names and source lines.

    Modules with the same text share a class. `Program(device=...)` creates a module with uninitialized
    weights, and its `load_state_dict` accepts the checkpoint of the original model. Calling the module
    returns the same results as the program, bit for bit. The source requires torch and the libraries that
    define the program's operators.

    Names in the program only become identifiers, literals or comments, so it is safe to write an untrusted
    program.

    Args:
        program: A program from `export`, `load` or `torch.export.export`, with fake or real weights. It is
            not changed.
    Returns:
        The text and the constants. They are deterministic. Paths of the model's files are relative to the
            working directory, as in an archive.
    Raises:
        PythonSourceError: the program contains something that Python source cannot express: an object of a
            C++ class, an effect token, a sparse weight, or a weight name that a module cannot have.

    Example:
        >>> from fakexport.exporting.capture import export
        >>> program = export(lambda: torch.nn.Linear(4, 2), (torch.zeros(3, 4),))
        >>> print(to_python(program).text.splitlines()[-4].strip())
        return linear
    """
    owner = with_plain_indexing(program)
    graph = with_open_modes(owner)
    tree = module_tree(program, graph)
    known = (usual_device(device) for device in devices_of_program(program) if device != "meta")
    writer = ClassWriter(owner, tree, frozenset(known))
    for node in tree.root.walk():
        if node is not tree.root and not node.is_container:
            writer.write(node)
    text, constants = _file(program, graph, writer)
    try:
        ast.parse(text)
    except (SyntaxError, RecursionError) as error:  # Raise an error instead of returning invalid source.
        raise PythonSourceError(
            f"the generated source of this program is not valid Python: {error}"
        ) from error
    return PythonSource(text, constants)


def write_source(program: ExportedProgram, path: str | os.PathLike[str]) -> PythonSource:
    """Write a program as a Python file, with large constants in a second file next to it.

    Args:
        program: As for `to_python`.
        path: The path of the file, such as `program.py`. An existing file is replaced atomically. Constants
            are written to `program.safetensors`.
    Returns:
        The written source.
    Raises:
        PythonSourceError: the program cannot be written as Python source.
        ValueError: the suffix is `.safetensors`, or the existing file for constants was not written by
            fakexport.
        FileWriteError: a file cannot be written.

    Example:
        >>> import torch; from fakexport.exporting.capture import export
        >>> program = export(lambda: torch.nn.Linear(4, 2), (torch.zeros(3, 4),))
        >>> _ = write_source(program, "/tmp/linear.py")
    """
    target = Path(path)
    if target.suffix == ".safetensors":
        raise InvalidValue(
            f"{target}: choose another suffix; .safetensors is reserved for the file of constants"
        )
    written = to_python(program)
    with new_file(target) as file:
        file.write(written.text.encode())
        file.flush()
        if written.constants is not None:
            beside = target.with_suffix(".safetensors")
            with new_file(beside) as constants:
                if beside.exists() and not _has_constants(beside):
                    raise InvalidValue(
                        f"{beside} exists and was not written by fakexport: choose a name other than {target}"
                    )
                constants.write(written.constants)
    return written


def _has_constants(path: Path) -> bool:
    """Return whether a file contains constants written by fakexport, as opposed to a checkpoint."""
    with path.open("rb") as file:
        return _MARK in file.read(100)


def _file(program: ExportedProgram, graph: Graph, writer: ClassWriter) -> tuple[str, bytes | None]:
    name, root, foreign = root_text(program, graph, writer)
    constants = _constants_file(writer.in_file)
    loader = _LOADER.strip().replace("DIGEST", hashlib.sha256(constants or b"").hexdigest())
    has_constants = any(entry.value is not None for entry in writer.in_file)
    definitions = [*([loader] if has_constants else ()), *writer.texts, root]
    body = "\n\n\n".join([*definitions, *([] if name == "Program" else [f"Program = {name}"])])
    head = [f'"""{name}, a program of torch.export.', ""]
    head += ["    program = Program()", "    program.load_state_dict(weights)", "    program(...)"]
    if libraries := dict.fromkeys(name.partition(".")[0] for name in library_operators(program)):
        head += ["", f"Import these operator libraries first: {', '.join(libraries)}."]
    if has_constants:
        head += ["", "Constants of the program are in the .safetensors file next to this one."]
    if foreign:
        names = comment_text(", ".join(foreign)).replace("\\", "/").replace('"', "'")
        head += ["", f"Plain containers replace these containers in the output: {names}."]
    targets = (visit.node.target for visit in walk(program) if visit.node.op == "call_function")
    modules = sorted({f"import {module}" for module in map(torch_module, targets) if module is not None})
    standard = [text for pattern, text in _IMPORTS.items() if re.search(rf"\b{pattern}", body)]
    imports = [*standard, *([""] if standard else ()), "import torch", *modules, "from torch import nn"]
    if "pytree." in body:
        imports.append("from torch.utils import _pytree as pytree")
    text = "\n".join([*head, '"""', "", *imports, "", "aten = torch.ops.aten", "", "", body, ""])
    return text, constants


_METADATA = {"fakexport.source": "constants"}
_MARK = json.dumps(_METADATA, separators=(",", ":")).encode()

_LOADER = '''
def load_constants(module):
    """Read the constants from the .safetensors file next to this one."""
    content = Path(__file__).with_suffix(".safetensors").read_bytes()
    if hashlib.sha256(content).hexdigest() != "DIGEST":
        raise ValueError("the .safetensors file next to this one was written for another program")
    start = 8 + int.from_bytes(content[:8], "little")
    entries = json.loads(content[8:start])
    del entries["__metadata__"]
    for name, entry in entries.items():
        begin, end = entry["data_offsets"]
        constant = module
        for part in name.split("."):
            constant = getattr(constant, part)
        values = torch.frombuffer(bytearray(content[start + begin : start + end]), dtype=constant.dtype)
        constant.as_strided((values.numel(),), (1,)).copy_(values)
'''

_NUMBERS = re.compile(r"torch\.(?:(bool)|(b?[fiu])(?:loat|nt|int)(\d+))")


def _constants_file(entries: Sequence[Entry]) -> bytes | None:
    """Return the content of the constants file, with tensors as stored in memory, or None if it is empty."""
    header: dict[str, object] = {"__metadata__": _METADATA}
    content = bytearray()
    for entry in entries:
        if (value := entry.value) is None or value.numel() == 0:
            continue
        # From the first element to the last.
        count = 1 + sum((size - 1) * step for size, step in zip(value.shape, value.stride(), strict=True))
        flat = value.as_strided((count,), (1,), value.storage_offset()).contiguous()
        data = flat.view(torch.uint8).numpy().tobytes()
        found = _NUMBERS.fullmatch(str(value.dtype))
        header[entry.place] = {
            "dtype": "".join(filter(None, found.groups())).upper() if found else "U8",
            "shape": [count if found else len(data)],
            "data_offsets": [len(content), len(content) + len(data)],
        }
        content += data
    if not content:
        return None
    text = json.dumps(header, separators=(",", ":")).encode()
    text += b" " * (-len(text) % 8)
    return len(text).to_bytes(8, "little") + text + bytes(content)
