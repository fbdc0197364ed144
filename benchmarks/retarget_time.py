"""What retargeting a program and proving it costs, beside exporting the model for the other device.

The same fake model, every dimension automatic, is exported for the CPU and for an H100 in one process; the
first program is retargeted to the H100. Both ways must give programs with the same operators, but for copies
behind attention where that takes another kernel.

    python -m benchmarks.retarget_time [--config llama-3.1-405b] [--rounds 3]
"""

from __future__ import annotations

import argparse
import statistics
import sys
import time
from typing import Any

from benchmarks.fresh_process import ROOT, peak_rss_bytes


def main() -> int:
    parser = argparse.ArgumentParser(description="Times retargeting against an export.")
    parser.add_argument("--config", default="llama-3.1-405b", help="A file of examples/configs.")
    parser.add_argument("--rounds", type=int, default=3)
    options = parser.parse_args()

    import fakexport as fe
    from fakexport.program import retargeted

    program, _ = exported(options.config, "cpu")
    print(f"{options.config}, {len(program.graph.nodes)} nodes, {peak_rss_bytes() / 1e6:.0f} MB")
    native, export_s = exported(options.config, "H100")
    print(f"  export for the H100   {export_s:6.1f} s", flush=True)
    seconds = []
    for _ in range(options.rounds):
        start = time.perf_counter()
        made = retargeted(program, {"cpu": "cuda:0"}, topology="H100")
        seconds.append(time.perf_counter() - start)
        assert not made.unproven
    found = fe.diff(made.program, native)
    assert {difference.operator for difference in found.operators} <= {"aten.contiguous.default"}
    assert not found.devices
    print(f"  retarget and prove    {min(seconds):6.1f} to {max(seconds):.1f} s", flush=True)
    print(f"  identical: {found.is_identical}, notes: {made.notes or 'none'}")
    print(f"  ratio {export_s / statistics.median(seconds):.1f}, peak {peak_rss_bytes() / 1e6:.0f} MB")
    return 0


def exported(config: str, topology: str) -> tuple[Any, float]:
    """The program of an example config in bfloat16, dynamic; and the seconds of its capture."""
    import torch

    from fakexport.capture import capture, parse_dynamic
    from fakexport.devices import emulate
    from fakexport.fake import build
    from fakexport.sources import resolve

    source = resolve(f"hf:{ROOT / 'examples' / 'configs' / config}.json")
    with emulate(topology) as devices:
        device = devices.default_device
        built = build(source.factory, device_map=device, dtype=torch.bfloat16)
        with built.mode:
            inputs = source.example_inputs(built.module, device, torch.bfloat16)
        tracing = source.tracing(built.module, inputs)
        dynamic = parse_dynamic("auto")
        start = time.perf_counter()
        captured = capture(built.module, inputs.args, inputs.kwargs, dynamic=dynamic, tracing=tracing)
        seconds = time.perf_counter() - start
    if captured.program is None:
        raise SystemExit(str(captured.failure))
    return captured.program, seconds


if __name__ == "__main__":
    sys.exit(main())
