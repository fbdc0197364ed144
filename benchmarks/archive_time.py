"""What saving and loading a program costs, beside stock `torch.export.save` and `load`.

The same program of a fake model on the CPU, every dimension automatic, is written and read both ways in one
process. Stock torch writes weights without data and reads them back as zeros, so the weights cost neither
anything; both loaded programs must have the operators of the first.

    python -m benchmarks.archive_time [--config llama-3.1-8b] [--no-stock]
"""

from __future__ import annotations

import argparse
import sys
import tempfile
import time
import warnings
from collections import Counter
from collections.abc import Callable
from pathlib import Path
from typing import Any

from benchmarks.fresh_process import ROOT, peak_rss_bytes


def main() -> int:
    parser = argparse.ArgumentParser(description="Times archives against torch.export.save and load.")
    parser.add_argument("--config", default="llama-3.1-8b", help="A file of examples/configs.")
    parser.add_argument("--no-stock", action="store_true", help="Measure fakexport alone.")
    options = parser.parse_args()

    import torch

    import fakexport as fe

    program = exported(options.config)
    nodes = len(program.graph.nodes)
    print(f"{options.config}, {nodes} nodes, {peak_rss_bytes() / 1e6:.0f} MB")
    with tempfile.TemporaryDirectory() as folder:
        ours, stock = Path(folder, "ours.pt2"), Path(folder, "stock.pt2")
        save, _ = timed("fakexport save", lambda: fe.save(program, ours))
        load, loaded = timed("fakexport load", lambda: fe.load(ours))
        print(f"  fakexport file  {ours.stat().st_size:12,} bytes")
        assert fe.diff(program, loaded).is_identical
        if options.no_stock:
            return 0
        program._example_inputs = None
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            stock_save, _ = timed("stock save", lambda: torch.export.save(program, stock))
            stock_load, stock_loaded = timed("stock load", lambda: torch.export.load(stock))
        print(f"  stock file      {stock.stat().st_size:12,} bytes")
        assert operators(stock_loaded) == operators(program)
        print(f"  ratios: save {stock_save / save:.1f}, load {stock_load / load:.1f}")
    return 0


def exported(config: str) -> Any:
    """The program of an example config on the CPU in bfloat16, with dynamic dimensions."""
    import torch

    from fakexport.capture import capture, parse_dynamic
    from fakexport.devices import emulate
    from fakexport.fake import build
    from fakexport.sources import resolve

    source = resolve(f"hf:{ROOT / 'examples' / 'configs' / config}.json")
    with emulate("cpu"):
        built = build(source.factory, device_map="cpu", dtype=torch.bfloat16)
        with built.mode:
            inputs = source.example_inputs(built.module, "cpu", torch.bfloat16)
        tracing = source.tracing(built.module, inputs)
        captured = capture(
            built.module, inputs.args, inputs.kwargs, dynamic=parse_dynamic("auto"), tracing=tracing
        )
    if captured.program is None:
        raise SystemExit(str(captured.failure))
    return captured.program


def timed(what: str, run: Callable[[], Any]) -> tuple[float, Any]:
    """Seconds and result; prints them with the peak of the process."""
    start = time.perf_counter()
    result = run()
    seconds = time.perf_counter() - start
    print(f"  {what:15} {seconds:7.2f} s, peak of the process {peak_rss_bytes() / 1e6:.0f} MB", flush=True)
    return seconds, result


def operators(program: Any) -> Counter[str]:
    return Counter(str(node.target) for node in program.graph.nodes if node.op == "call_function")


if __name__ == "__main__":
    sys.exit(main())
