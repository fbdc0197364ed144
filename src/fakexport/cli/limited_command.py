"""A command in a process of a sweep: `python -m fakexport.cli.limited_command ALIVE ARGUMENTS...`."""

from __future__ import annotations

import sys

from fakexport.cli.entry import main
from fakexport.processes import end_with_parent

if __name__ == "__main__":
    end_with_parent(int(sys.argv[1]))
    sys.exit(main(sys.argv[2:]))
