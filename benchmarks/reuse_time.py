"""What tracing equal blocks once is worth: our capture with and without it, and stock `torch.export`.

All three trace the same fake model in one process and take turns. The programs with and without reuse are
compared first, down to the names of nodes; with the program of stock torch, the operators are compared.

    python -m benchmarks.reuse_time [--config CONFIG] [--dynamic auto] [--rounds 3]
"""

from __future__ import annotations

import argparse
import gc
import statistics
import sys
import time
from collections import Counter
from typing import Any

CONFIG = "examples/configs/llama-3.1-405b.json"
WAYS = ("stock", "every block", "reuse")


def main() -> int:
    parser = argparse.ArgumentParser(description="Times block reuse against stock torch.export.")
    parser.add_argument("--rounds", type=int, default=1)
    parser.add_argument("--config", default=CONFIG)
    parser.add_argument("--dynamic", choices=("auto", "static"), default="static")
    parser.add_argument("--target", default="H100")
    options = parser.parse_args()

    import torch

    from fakexport.capture import capture, parse_dynamic
    from fakexport.capture.block_reuse import BlockReuse
    from fakexport.capture.dynamic_dims import as_torch_shapes
    from fakexport.devices import emulate
    from fakexport.fake import build, install_transfers
    from fakexport.program.identity import first_difference
    from fakexport.sources import resolve

    seen: list[BlockReuse] = []
    made = BlockReuse.__init__

    def noted(blocks: BlockReuse, module: Any) -> None:
        seen.append(blocks)
        made(blocks, module)

    BlockReuse.__init__ = noted  # type: ignore[method-assign]
    source = resolve(f"hf:{options.config}")
    seconds: dict[str, list[float]] = {way: [] for way in WAYS}
    programs: dict[str, Any] = {}
    with emulate(options.target) as devices:
        placed = "balanced" if len(devices.devices) > 1 else None
        built = build(source.factory, device_map=placed or devices.default_device, dtype=torch.bfloat16)
        with built.mode:
            inputs = source.example_inputs(built.module, devices.default_device, torch.bfloat16)
        dynamic = parse_dynamic("auto") if options.dynamic == "auto" else None
        with install_transfers(built.module, built.placement):
            for _ in range(options.rounds):
                for way in WAYS:
                    tracing = source.tracing(built.module, inputs)
                    gc.collect()
                    wall, start = time.perf_counter(), time.process_time()
                    if way == "stock":
                        shapes = as_torch_shapes(dynamic, inputs.kwargs) if dynamic else None
                        with tracing:
                            program = torch.export.export(
                                built.module, inputs.args, dict(inputs.kwargs), dynamic_shapes=shapes
                            )
                    else:
                        captured = capture(
                            built.module,
                            inputs.args,
                            inputs.kwargs,
                            dynamic=dynamic,
                            tracing=tracing,
                            reuse=way == "reuse",
                        )
                        if captured.program is None:
                            raise SystemExit(str(captured.failure))
                        program = captured.program
                    seconds[way].append(time.process_time() - start)
                    wall = time.perf_counter() - wall
                    print(f"{way}: {seconds[way][-1]:.1f} s of processor, {wall:.1f} s", file=sys.stderr)
                    programs[way] = program
    difference = first_difference(programs["reuse"], programs["every block"])
    if difference is not None:
        print(f"error: reuse changes the program: {difference}", file=sys.stderr)
        return 1
    operators = [_operators(programs[way]) for way in ("stock", "reuse")]
    if operators[0] != operators[1]:
        print("error: stock torch has other operators", file=sys.stderr)
        return 1
    print(
        f"{options.config}, {options.dynamic}, {len(programs['reuse'].graph.nodes)} nodes, identical programs"
    )
    for name, (calls, replayed, why) in seen[-1].report().items():
        print(f"  {name}: {replayed} of {calls} calls reused {why or ''}")
    for way in WAYS:
        ratios = [a / b for a, b in zip(seconds["stock"], seconds[way], strict=True)]
        spread = f"{statistics.median(ratios):.2f} ({min(ratios):.2f} to {max(ratios):.2f})"
        print(f"  {way:12} {min(seconds[way]):6.1f} s   {spread}")
    return 0


def _operators(program: Any) -> Counter[str]:
    return Counter(str(node.target) for node in program.graph.nodes if node.op == "call_function")


if __name__ == "__main__":
    sys.exit(main())
