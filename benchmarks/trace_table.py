"""Create the table of docs/notes/performance.md: models of published size, each measured in its own process.

    python -m benchmarks.trace_table [--only llama,flux] [--rounds 2] [--out rows.jsonl]
    python -m benchmarks.trace_table --growth [--plot docs/performance_growth.svg]

`benchmarks/trace_time.py` measures each row, and compares the programs first.
"""

from __future__ import annotations

import argparse
import json
import subprocess
import sys
import tempfile
from pathlib import Path
from typing import Any

_CONFIGS = "examples/configs"
# Name, source, sizes, target, and the goal for the ratio.
ROWS = (
    ("Llama-3.1-405B", f"hf:{_CONFIGS}/llama-3.1-405b.json", "static", "H100", "10"),
    ("Llama-3.1-405B", f"hf:{_CONFIGS}/llama-3.1-405b.json", "auto", "H100", "10"),
    ("Llama-3.1-405B on 8xH100, balanced", f"hf:{_CONFIGS}/llama-3.1-405b.json", "static", "8xH100", ""),
    ("Llama-3.1-405B on 8xH100, balanced", f"hf:{_CONFIGS}/llama-3.1-405b.json", "auto", "8xH100", ""),
    ("DeepSeek-V3", f"hf:{_CONFIGS}/deepseek-v3.json", "static", "H100", "8"),
    ("Qwen3-235B-A22B", f"hf:{_CONFIGS}/qwen3-235b-a22b.json", "static", "H100", "8"),
    ("gpt-oss-120b", f"hf:{_CONFIGS}/gpt-oss-120b.json", "static", "H100", "8"),
    ("Mixtral-8x22B", f"hf:{_CONFIGS}/mixtral-8x22b.json", "static", "H100", ""),
    ("Llama-3.1-8B", f"hf:{_CONFIGS}/llama-3.1-8b.json", "auto", "H100", ""),
    ("BERT-large", f"hf:{_CONFIGS}/bert-large.json", "static", "H100", "4"),
    ("Whisper-large-v3", f"hf:{_CONFIGS}/whisper-large-v3.json", "static", "H100", "3"),
    ("ViT-L", f"hf:{_CONFIGS}/vit-l.json", "static", "H100", "3"),
    ("DINOv2-large", f"hf:{_CONFIGS}/dinov2-large.json", "static", "H100", ""),
    ("Wav2Vec2-large", f"hf:{_CONFIGS}/wav2vec2-large.json", "static", "H100", ""),
    ("FLUX.1", f"diffusers:{_CONFIGS}/flux1-dev.json", "static", "H100", "3"),
    ("SDXL, U-Net", f"diffusers:{_CONFIGS}/sdxl-unet.json", "static", "H100", "3"),
)
GROWTH = (32, 126, 400, 1260)


def main() -> int:
    parser = argparse.ArgumentParser(description="Measures captures of models of published size.")
    parser.add_argument("--only", default="", help="comma-separated parts of names")
    parser.add_argument("--rounds", type=int, default=2)
    parser.add_argument("--out", type=Path, help="a file of JSON lines, to which rows are added")
    parser.add_argument("--growth", action="store_true", help="layers against time and memory instead")
    parser.add_argument("--plot", type=Path, help="with --growth: an SVG file (needs matplotlib)")
    options = parser.parse_args()
    if options.growth:
        return _growth(options)
    wanted = [part for part in options.only.lower().split(",") if part]
    print("| Model | Sizes | Nodes | Stock | Plain | Memo | Stock / memo | Goal | Peak |")
    print("|---|---|---|---|---|---|---|---|---|")
    for name, source, sizes, target, goal in ROWS:
        if wanted and not any(part in name.lower() for part in wanted):
            continue
        row = _measured(
            ["--source", source, "--dynamic", sizes, "--target", target, "--rounds", str(options.rounds)]
        )
        print(_line(name, sizes, goal, row), flush=True)
        if options.out is not None:
            with options.out.open("a") as file:
                file.write(json.dumps({"model": name, **row}) + "\n")
    return 0


def _growth(options: argparse.Namespace) -> int:
    rows = {}
    for layers in GROWTH:
        rows[layers] = row = _measured(
            ["--layers", str(layers), "--ways", "memo", "--rounds", str(options.rounds)]
        )
        growth = row["growth_bytes"] / row["nodes"] / 1024
        print(
            f"{layers} layers, {row['nodes']:,} nodes: {min(row['seconds']['memo']):.2f} s, "
            f"{growth:.1f} KiB per node",
            flush=True,
        )
    if options.plot is not None:
        _plot(rows, options.plot)
    return 0


def _plot(rows: dict[int, dict[str, Any]], path: Path) -> None:
    import matplotlib

    matplotlib.use("svg")
    matplotlib.rcParams |= {"svg.hashsalt": "fakexport", "svg.fonttype": "none"}
    from matplotlib import pyplot

    figure, axes = pyplot.subplots(figsize=(6, 4))
    axes.loglog(list(rows), [min(row["seconds"]["memo"]) for row in rows.values()], "o-")
    axes.set_xticks(list(rows), [str(layers) for layers in rows])
    axes.minorticks_off()
    axes.set_xlabel("layers of Llama-3.1-405B, static sizes")
    axes.set_ylabel("processor seconds of a capture")
    axes.grid(True)
    figure.tight_layout()
    figure.savefig(path, metadata={"Date": None})


def _measured(options: list[str]) -> dict[str, Any]:
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "row.json"
        command = [sys.executable, "-m", "benchmarks.trace_time", *options, "--out", str(path)]
        done = subprocess.run(command, capture_output=True, text=True, check=False)
        if done.returncode != 0:
            raise SystemExit(f"{' '.join(command)}: {done.stderr[-2000:]}")
        return dict(json.loads(path.read_text()))


def _line(name: str, sizes: str, goal: str, row: dict[str, Any]) -> str:
    seconds = row["seconds"]
    ratios = sorted(a / b for a, b in zip(seconds["stock"], seconds["memo"], strict=True))
    times = " | ".join(f"{min(seconds[way]):.1f} s" for way in ("stock", "plain", "memo"))
    spread = f"{ratios[len(ratios) // 2]:.1f} ({ratios[0]:.1f} to {ratios[-1]:.1f})"
    shown = "`Dim.AUTO`" if sizes == "auto" else sizes
    peak = f"{row['peak_bytes'] / 2**30:.2f} GiB"
    return f"| {name} | {shown} | {row['nodes']:,} | {times} | {spread} | {goal} | {peak} |"


if __name__ == "__main__":
    sys.exit(main())
