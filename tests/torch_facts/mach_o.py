"""What a library of macOS holds, read as bytes: symbols, code, and tables of virtual methods."""

from __future__ import annotations

import struct
from dataclasses import dataclass

_MAGIC, _SEGMENT, _SYMTAB = 0xFEEDFACF, 0x19, 0x2
_EXTERNAL, _TYPE, _IN_SECTION = 0x01, 0x0E, 0x0E
# DYLD_CHAINED_PTR_64 and ..._OFFSET: bit 63 says that another library has the symbol, 36 bits are the target.
_TARGET = (1 << 36) - 1


@dataclass(frozen=True)
class MachO:
    """A 64-bit library of one architecture.

    Args:
        data: The file.
        segments: Address, size, and offset in the file.
        symbols: Name, without the underscore in front -> address.
        exported: Those of them that `dlsym` finds.
    """

    data: bytes
    segments: tuple[tuple[int, int, int], ...]
    symbols: dict[str, int]
    exported: frozenset[str]

    @classmethod
    def read(cls, data: bytes) -> MachO:
        magic, _, _, _, count = struct.unpack_from("<5I", data)
        assert magic == _MAGIC
        segments, symbols, exported, at = [], {}, set(), 32
        for _ in range(count):
            command, size = struct.unpack_from("<2I", data, at)
            if command == _SEGMENT:
                address, length, offset = struct.unpack_from("<3Q", data, at + 24)
                segments.append((address, length, offset))
            elif command == _SYMTAB:
                table, entries, text, _ = struct.unpack_from("<4I", data, at + 8)
                for name_at, kind, _, _, address in struct.iter_unpack(
                    "<IBBHQ", data[table : table + 16 * entries]
                ):
                    if kind & _TYPE == _IN_SECTION and kind < 0x20:
                        start = text + name_at + 1
                        name = data[start : data.index(b"\0", start)].decode()
                        symbols[name] = address
                        if kind & _EXTERNAL:
                            exported.add(name)
            at += size
        return cls(data, tuple(segments), symbols, frozenset(exported))

    def bytes_at(self, address: int, length: int) -> bytes:
        for start, size, offset in self.segments:
            if start <= address < start + size:
                return self.data[offset + address - start : offset + address - start + length]
        raise ValueError(hex(address))

    def methods(self, table: str, count: int) -> list[str | None]:
        """Names of the functions in a table of virtual methods; None for one of another library."""
        names = {address: name for name, address in self.symbols.items()}
        entries = struct.unpack(f"<{count}Q", self.bytes_at(self.symbols[table] + 16, 8 * count))
        return [None if entry >> 63 else names.get(entry & _TARGET) for entry in entries]
