"""Coverage-guided fuzzing: `python -m tests.fuzz.fuzz_archive archive -max_total_time=60 [CORPUS]`.

Needs the extra `fuzz`. Options and folders behind the target's name are libFuzzer's.
"""

from __future__ import annotations

import sys
import tempfile
from pathlib import Path


def main() -> None:
    import atheris

    # What is imported in here reports its branches to the fuzzer.
    with atheris.instrument_imports(include=["fakexport.archive"]):
        from tests.fuzz.archive_target import TARGETS, seeds

    target, *options = sys.argv[1:] or ["archive"]
    with tempfile.TemporaryDirectory() as corpus:
        for number, seed in enumerate(seeds(target)):
            (Path(corpus) / f"seed_{number}").write_bytes(seed)
        atheris.Setup([sys.argv[0], *options, corpus], TARGETS[target])
        atheris.Fuzz()


if __name__ == "__main__":
    main()
