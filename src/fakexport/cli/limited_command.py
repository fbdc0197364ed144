"""A command in a process of a sweep: `python -m fakexport.cli.limited_command ALIVE ARGUMENTS...`."""

from __future__ import annotations

import os
import sys

from fakexport.cli.entry import main
from fakexport.processes import IN_PROCESS, end_with_parent

if __name__ == "__main__":
    os.environ[IN_PROCESS] = "1"  # This is the process of its one target, and the one that has limits.
    end_with_parent(int(sys.argv[1]))
    end = os._exit
    # The report has its own descriptor, so that other output on stdout cannot become part of it.
    sys.stdout = os.fdopen(os.dup(1), "w", encoding="utf-8")
    os.dup2(2, 1)
    code = main(sys.argv[2:])
    end(code)  # Without what the model has left: threads, and handlers that would change the exit code.
