"""Compare the time of retargeting and verifying a program with the time of its export.

A fake model is exported for the CPU with `--dynamic auto`. In the same process, its program is retargeted to
an H100 and back to the CPU. The result must equal the original program, node for node.

    python -m benchmarks.retarget_time [--config llama-3.1-405b] [--rounds 3]
"""

from __future__ import annotations

import argparse
import statistics
import sys
import time

from benchmarks.archive_time import exported
from fakexport.emulation.devices.host_memory import peak_bytes


def main() -> int:
    parser = argparse.ArgumentParser(description="Times retargeting against an export.")
    parser.add_argument("--config", default="llama-3.1-405b", help="A file of examples/configs.")
    parser.add_argument("--rounds", type=int, default=3)
    options = parser.parse_args()

    from fakexport.exporting.program import retargeted
    from fakexport.exporting.program.canonical import canonicalise

    start = time.process_time()
    program = exported(options.config)
    export_s = time.process_time() - start
    print(f"{options.config}, {len(program.graph.nodes)} nodes, export {export_s:.1f} s of processor time")
    seconds = []
    for _ in range(options.rounds):
        start = time.process_time()
        there = retargeted(program, {"cpu": "cuda:0"}, topology="H100")
        seconds.append(time.process_time() - start)
    back = retargeted(there.program, {"cuda:0": "cpu"})
    assert not there.unproven
    assert canonicalise(back.program).lines == canonicalise(program).lines
    print(f"  retarget and prove {min(seconds):.1f} to {max(seconds):.1f} s, notes: {there.notes or 'none'}")
    print(f"  ratio {export_s / statistics.median(seconds):.1f}, peak {peak_bytes() / 1e6:.0f} MB")
    return 0


if __name__ == "__main__":
    sys.exit(main())
