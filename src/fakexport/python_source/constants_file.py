"""The constants that do not fit into the text, as a .safetensors file, and the Python that reads it."""

from __future__ import annotations

import json
from collections.abc import Sequence

import torch

from .module_tree import Entry, held_at

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
