"""`python -m fakexport`, and the script `fakexport`."""

from __future__ import annotations

import gc
import os
import sys
from contextlib import suppress
from pathlib import Path

_ASK_NOTHING = {"--help", "--version"}
_INTERRUPTED = 130


def main() -> None:
    """Run the command line and end the process with its exit code."""
    if len(sys.argv) > 1 and _ASK_NOTHING.isdisjoint(sys.argv):
        _fix_order_of_sets()

    try:
        from fakexport.cli import main as run

        code = run()
    except KeyboardInterrupt:  # While the command line was imported.
        code = _INTERRUPTED
        sys.stderr.write("error: interrupted\n")
    gc.freeze()  # At exit, Python would search the million objects of torch for garbage, which takes 0.8 s.
    sys.exit(code)


def _fix_order_of_sets() -> None:
    """Restart this process with a fixed hash seed for strings, unless it already has that seed.

    Some models iterate over sets of strings: transformers does so for the types of layers. Python hashes
    strings differently in each process, so the operators would be in a different order, and a lock file or an
    archive would change although the model did not. On Windows, a process cannot be replaced, so it keeps its
    own seed.
    """
    can_start = os.name == "posix" and bool(sys.executable) and not sys.flags.ignore_environment
    if os.environ.get("PYTHONHASHSEED") != "0" and can_start and _is_of_its_own():
        os.environ["PYTHONHASHSEED"] = "0"
        with suppress(OSError):
            os.execv(sys.executable, [sys.executable, *sys.orig_argv[1:]])


def _is_of_its_own() -> bool:
    """Return whether the process was started to run this command, rather than a program that calls `main`."""
    arguments = sys.argv[1:]
    match sys.orig_argv[: -len(arguments)]:
        case [*_, "-m", "fakexport"]:
            is_named = True
        case [_, *_, script]:
            is_named = Path(script).name == "fakexport"
        case _:
            is_named = False
    return is_named and sys.orig_argv[-len(arguments) :] == arguments


if __name__ == "__main__":
    main()
