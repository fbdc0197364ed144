"""Run a command in a process of a sweep: `python -m ...limited_command ALIVE FOLDER ARGUMENTS...`.

`ALIVE` is the file descriptor of a pipe. This process ends when the sweep closes the pipe. `FOLDER` is for
temporary files; the sweep deletes it.
"""

from __future__ import annotations

import os
import sys

from fakexport.cli.entry import main
from fakexport.files.processes import IN_PROCESS, end_with_parent, use_temporary_folder

if __name__ == "__main__":
    os.environ[IN_PROCESS] = "1"  # Do not fork again: the limits apply to this process.
    end_with_parent(int(sys.argv[1]))
    use_temporary_folder(sys.argv[2])
    end = os._exit
    # The report is written to a separate file descriptor, so that it contains no other output.
    sys.stdout = os.fdopen(os.dup(1), "w", encoding="utf-8")
    os.dup2(2, 1)
    code = main(sys.argv[3:])
    end(code)  # Skip threads and exit handlers of the model, which could change the exit code.
