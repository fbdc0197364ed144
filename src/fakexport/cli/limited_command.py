"""A command in a process of a sweep: `python -m fakexport.cli.limited_command ALIVE ARGUMENTS...`."""

from __future__ import annotations

import os
import sys

from fakexport.cli.entry import main
from fakexport.processes import IN_PROCESS, end_with_parent

if __name__ == "__main__":
    os.environ[IN_PROCESS] = "1"  # This is the process of its one target, and the one that has limits.
    end_with_parent(int(sys.argv[1]))
    sys.exit(main(sys.argv[2:]))
