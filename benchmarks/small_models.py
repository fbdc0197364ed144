"""Compare the time of fakexport's capture with stock `torch.export`, for small models of many types.

Uses every fourth architecture of the tests, with a few layers and small sizes. Both trace the same fake model
in one process: they alternate after a warm-up round that is not measured. Times are processor time. Both
programs must have the same operators.

    python -m benchmarks.small_models [--every 4 | --only swin,cvt] [--rounds 3] [--out rows.jsonl]
"""

from __future__ import annotations

import argparse
import json
import statistics
import sys
import tempfile
from pathlib import Path

from benchmarks.trace_time import difference, measured

WAYS = ["stock", "memo"]


def main() -> int:
    parser = argparse.ArgumentParser(description="Times captures of small models against torch.export.")
    parser.add_argument("--every", type=int, default=4, help="one of so many architectures")
    parser.add_argument("--only", type=lambda names: names.split(","), help="types, separated by commas")
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--dynamic", choices=("auto", "static"), default="static")
    parser.add_argument("--target", default="H100")
    parser.add_argument("--out", type=Path, help="a file of JSON lines, to which rows are added")
    options = parser.parse_args()

    from tests.architectures import ARCHITECTURES

    ratios: dict[str, float] = {}
    for architecture in ARCHITECTURES[:: 1 if options.only else options.every]:
        name = architecture.model_type
        if options.only and name not in options.only:
            continue
        with tempfile.TemporaryDirectory() as folder:
            path = Path(folder) / "config.json"
            path.write_text(json.dumps(dict(architecture.settings)))
            options.source = f"hf:{path}:{architecture.auto_class}"
            try:
                seconds, programs, _ = measured("", WAYS, options)
            except (Exception, SystemExit) as refusal:  # Whatever stock torch raises.
                print(f"{name}: left out: {str(refusal).splitlines()[0][:100]}", flush=True)
                continue
        if (fault := difference(programs)) is not None:  # Such as operators that exist on a GPU only.
            print(f"{name}: left out: {fault}", flush=True)
            continue
        ratios[name] = statistics.median(
            stock / ours for stock, ours in zip(seconds["stock"], seconds["memo"], strict=True)
        )
        print(f"{name}: {min(seconds['memo']):.2f} s, {ratios[name]:.2f}", flush=True)
        if options.out is not None:
            with options.out.open("a") as file:
                file.write(json.dumps({"model": name, "seconds": seconds}) + "\n")
    ordered = sorted(ratios, key=ratios.__getitem__)
    below = sum(ratio < 0.95 for ratio in ratios.values())
    print(
        f"{len(ratios)} models: median {statistics.median(ratios.values()):.2f}, {below} below 0.95; lowest "
        + ", ".join(f"{name} {ratios[name]:.2f}" for name in ordered[:8])
    )
    return 0


if __name__ == "__main__":
    sys.exit(main())
