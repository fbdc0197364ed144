"""`python -m fakexport`, and the script `fakexport`."""

from __future__ import annotations

import os
import sys
from contextlib import suppress
from pathlib import Path

_ASK_NOTHING = {"--help", "--version"}


def main() -> None:
    """Run the command line and end the process with its exit code."""
    if len(sys.argv) > 1 and _ASK_NOTHING.isdisjoint(sys.argv):
        _fix_order_of_sets()

    from fakexport.cli import main as run

    sys.exit(run())


def _fix_order_of_sets() -> None:
    """Start this process again with one seed for the hashes of texts, unless it has that one.

    Models go through sets of names: those of transformers do so for the kinds of their layers. Python hashes
    texts differently in each process, so that their operators would come in another order, and a lock or an
    archive would change where nothing did. Windows has no such start, and keeps the order of the process.
    """
    can_start = os.name == "posix" and bool(sys.executable) and not sys.flags.ignore_environment
    if os.environ.get("PYTHONHASHSEED") != "0" and can_start and _is_of_its_own():
        os.environ["PYTHONHASHSEED"] = "0"
        with suppress(OSError):
            os.execv(sys.executable, [sys.executable, *sys.orig_argv[1:]])


def _is_of_its_own() -> bool:
    """Return whether the process was started to run this command, not a program that goes on to do so."""
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
