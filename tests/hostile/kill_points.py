"""A child that ends, or gets an error, at the N-th of its system calls that write.

The child is traced with ptrace, so that the calls of every library are seen: of Python, of Rust and of stdio.
Source: the crash tests of SQLite, https://www.sqlite.org/testing.html#crash_testing.
"""

from __future__ import annotations

import ctypes
import errno
import os
import platform
import signal
import stat
import sys
import traceback
from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Literal

CAN_TRACE = sys.platform == "linux" and platform.machine() == "x86_64"

# Of x86-64, from the kernel's syscall_64.tbl.
_OF_A_DESCRIPTOR = {
    1: "write",
    18: "pwrite",
    20: "writev",
    40: "sendfile",
    74: "fsync",
    75: "fdatasync",
    77: "ftruncate",
    91: "fchmod",
    285: "fallocate",
    296: "pwritev",
    326: "copy_file_range",
}
_OF_A_PATH = {
    76: "truncate",
    82: "rename",
    83: "mkdir",
    84: "rmdir",
    86: "link",
    87: "unlink",
    88: "symlink",
    258: "mkdirat",
    263: "unlinkat",
    264: "renameat",
    265: "linkat",
    266: "symlinkat",
    316: "renameat2",
}
_OPEN = {2: "open", 85: "creat", 257: "openat"}
_DEFECTS = {"fsync", "fdatasync", "rmdir", "unlink", "unlinkat"}
"""What fails for a defect of the disk, and not because it is full."""
_TRACEME, _GETREGS, _SETREGS, _SYSCALL, _SETOPTIONS = 0, 12, 13, 24, 0x4200
_TRACESYSGOOD, _EXITKILL = 1, 0x100000
_SYSCALL_STOP = signal.SIGTRAP | 0x80

Fault = Literal["kill", "error"]


class _Registers(ctypes.Structure):
    _fields_ = [
        (name, ctypes.c_ulonglong)
        for name in (
            *("r15", "r14", "r13", "r12", "rbp", "rbx", "r11", "r10", "r9", "r8", "rax", "rcx", "rdx", "rsi"),
            *("rdi", "orig_rax", "rip", "cs", "eflags", "rsp", "ss", "fs_base", "gs_base", "ds", "es"),
            *("fs", "gs"),
        )
    ]


@dataclass(frozen=True)
class Ended:
    """What became of a child.

    Args:
        code: Its exit code; None if it was killed.
        calls: Its writing calls, up to that with the fault.
        said: What it returned, or the traceback.
    """

    code: int | None
    calls: tuple[str, ...]
    said: str


def run_child(work: Callable[[], str], at: int = 0, fault: Fault = "kill") -> Ended:
    """Run some work in a child, with a fault at the `at`-th of its writing calls; 0 for none.

    Killed, the child does not make that call. With an error the call fails as on a full or broken disk.
    """
    reader, writer = os.pipe()
    child = os.fork()
    if child == 0:
        os.close(reader)
        _be_traced(work, writer)
    os.close(writer)
    with open(reader, "rb") as said:  # noqa: PTH123 (a descriptor is no path)
        code, calls = _traced(child, at, fault)
        return Ended(code, tuple(calls), said.read().decode())


def _be_traced(work: Callable[[], str], writer: int) -> None:
    """Runs in the child, which ends here. What is said fits into the pipe: nobody reads before the end."""
    code, said = 1, ""
    try:
        nowhere = os.open(os.devnull, os.O_RDWR)
        for number in (0, 1, 2):
            os.dup2(nowhere, number)
        if _ptrace(_TRACEME, 0) == 0:
            os.kill(os.getpid(), signal.SIGSTOP)
            said, code = work(), 0
    except BaseException:
        said = traceback.format_exc()
    finally:
        os.write(writer, said.encode(errors="replace")[-30_000:])
        os._exit(code)


def _traced(child: int, at: int, fault: Fault) -> tuple[int | None, list[str]]:
    calls: list[str] = []
    os.waitpid(child, 0)
    _ptrace(_SETOPTIONS, child, _TRACESYSGOOD | _EXITKILL)
    is_entering, failing, deliver = True, 0, 0
    registers = _Registers()
    while True:
        _ptrace(_SYSCALL, child, deliver)
        _, status = os.waitpid(child, 0)
        if not os.WIFSTOPPED(status):
            return (os.WEXITSTATUS(status) if os.WIFEXITED(status) else None), calls
        deliver = os.WSTOPSIG(status)
        if deliver != _SYSCALL_STOP:
            continue
        deliver = 0
        _ptrace(_GETREGS, child, ctypes.addressof(registers))
        if is_entering and (name := _writing_call(child, registers)) is not None:
            calls.append(name)
            if len(calls) == at and fault == "kill":
                os.kill(child, signal.SIGKILL)
                os.waitpid(child, 0)
                return None, calls
            elif len(calls) == at:
                failing = errno.EIO if name in _DEFECTS else errno.ENOSPC
                registers.orig_rax = 2**64 - 1  # No call has this number.
                _ptrace(_SETREGS, child, ctypes.addressof(registers))
        elif not is_entering and failing:
            registers.rax, failing = 2**64 - failing, 0
            _ptrace(_SETREGS, child, ctypes.addressof(registers))
        is_entering = not is_entering


def _writing_call(child: int, registers: _Registers) -> str | None:
    """Return the name of a call that changes files, and not only streams and devices."""
    number = registers.orig_rax
    if number in _OPEN:
        path, flags = {
            2: (registers.rdi, registers.rsi),
            85: (registers.rdi, os.O_WRONLY),
            257: (registers.rsi, registers.rdx),
        }[number]
        is_writing = flags & (os.O_WRONLY | os.O_RDWR | os.O_CREAT)
        is_file = is_writing and not _text(child, path).startswith((b"/dev/", b"/proc/"))
        return _OPEN[number] if is_file else None
    if number in _OF_A_DESCRIPTOR:
        written = (registers.rdx if number == 326 else registers.rdi) & 0xFFFFFFFF
        with suppress(OSError):
            mode = Path(f"/proc/{child}/fd/{written}").stat().st_mode
            return _OF_A_DESCRIPTOR[number] if stat.S_ISREG(mode) or stat.S_ISDIR(mode) else None
    return _OF_A_PATH.get(number)


def _text(child: int, address: int) -> bytes:
    with Path(f"/proc/{child}/mem").open("rb") as memory:
        memory.seek(address)
        return memory.read(8)


def _ptrace(request: int, child: int, data: int = 0) -> int:
    done = _libc.ptrace(request, child, None, data)
    if done == -1:
        raise OSError(ctypes.get_errno(), f"ptrace {request}: {os.strerror(ctypes.get_errno())}")
    return int(done)


_libc = ctypes.CDLL(None, use_errno=True)
_libc.ptrace.argtypes = (ctypes.c_long, ctypes.c_long, ctypes.c_void_p, ctypes.c_void_p)
_libc.ptrace.restype = ctypes.c_long
