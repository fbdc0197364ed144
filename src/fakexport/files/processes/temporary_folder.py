"""A folder for the temporary files of a child process, which its parent process deletes."""

from __future__ import annotations

import os
import shutil
import tempfile
import time
from pathlib import Path

_GRACE_S = 1.0
_lasting: list[str] = []


class TemporaryFolder:
    """A new folder. A process that is killed cannot delete its temporary files itself."""

    def __init__(self) -> None:
        self.path = tempfile.mkdtemp(prefix="fakexport-")

    def close(self) -> None:
        """Delete the folder. Descendants of a killed process can create files until they have ended, too."""
        until = time.monotonic() + _GRACE_S
        while Path(self.path).exists() and time.monotonic() < until:
            shutil.rmtree(self.path, ignore_errors=True)
            time.sleep(0.001)


def use_temporary_folder(path: str) -> None:
    """Put all new temporary files of this process and its children into a folder."""
    _lasting.append(lasting_folder())
    tempfile.tempdir = os.environ["TMPDIR"] = path


def lasting_folder() -> str:
    """Return the folder for temporary files that outlast this process, such as caches."""
    return _lasting[0] if _lasting else tempfile.gettempdir()
