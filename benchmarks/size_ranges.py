"""Compare an export with several ranges of a size with one export: whole processes, and archive sizes.

For each choice of ranges, `fakexport export` runs with one range and with all of them, in turn. Before it is
timed, `fe.load_bundle` must read as many programs as expected from the archive.

    python -m benchmarks.size_ranges [--config llama-3.1-8b] [--rounds 3]
"""

from __future__ import annotations

import argparse
import subprocess
import sys
import tempfile
import time
from pathlib import Path

import fakexport as fe
from benchmarks.fresh_process import ROOT

ONE = "input_ids.1=2..4096"
CHOICES = {
    "input_ids.1=2..512|513..1024|1025..2048|2049..4096": 1,
    "input_ids.1=1..512|513..1024|1025..2048|2049..4096": 2,
    "input_ids.1=1|2..4096": 2,
    "input_ids.1=512|1024|2048|4096": 4,
}
"""Values of `--dynamic` -> number of programs."""


def main() -> int:
    parser = argparse.ArgumentParser(description="Times exports with several ranges of a size.")
    parser.add_argument("--config", default="llama-3.1-8b", help="A file of examples/configs.")
    parser.add_argument("--rounds", type=int, default=3)
    options = parser.parse_args()
    source = f"hf:{ROOT / 'examples/configs' / options.config}.json"
    with tempfile.TemporaryDirectory() as folder:
        one, several = Path(folder, "one.pt2"), Path(folder, "several.pt2")
        for choice, count in CHOICES.items():
            times = [
                (_seconds(source, ONE, one), _seconds(source, choice, several)) for _ in range(options.rounds)
            ]
            found = len(fe.load_bundle(several))
            assert found == count, f"{choice}: {found} programs, not {count}"
            ratio = min(each for _, each in times) / min(each for each, _ in times)
            size = several.stat().st_size / one.stat().st_size
            print(
                f"{choice}: {count} programs, {ratio:.2f} times the time of one export "
                f"({min(each for each, _ in times):.1f} s), {size:.2f} times its archive",
                flush=True,
            )
    return 0


def _seconds(source: str, dynamic: str, archive: Path) -> float:
    command = [sys.executable, "-m", "fakexport", "export", source, "--dynamic", dynamic, "-o", str(archive)]
    begun = time.perf_counter()
    subprocess.run(command, check=True, capture_output=True)
    return time.perf_counter() - begun


if __name__ == "__main__":
    sys.exit(main())
