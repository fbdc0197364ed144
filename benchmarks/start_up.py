"""Measure how long commands take that do little work, next to the imports that they need.

Each command runs in a fresh process, as a user would start it. The commands alternate for a number of rounds.
The column *torch* says whether the process that prints imports torch. The imports have rows of their own,
because a command that needs them cannot be faster. Every `ShapeEnv` of torch imports TorchDynamo, so decoding
a program does too.

    python -m benchmarks.start_up [--rounds 3]
"""

from __future__ import annotations

import argparse
import os
import shlex
import statistics
import subprocess
import sys
import tempfile
import time
from pathlib import Path

ROOT = Path(__file__).parents[1]
IMPORTS = {
    "import torch": "import torch",
    "import torch._dynamo": "import torch._dynamo",
    "import torch._dynamo, GPT2LMHeadModel": "import torch._dynamo; from transformers import GPT2LMHeadModel",
}
COMMANDS = (
    "--version",
    "check --help",
    "explain FE201",
    "devices",
    "verify-weights model.pt2 model.safetensors",
    "inspect model.pt2",
    "inspect dynamic.pt2",
    "diff model.pt2 model.pt2",
    "diff model.pt2 dynamic.pt2",
    "view model.pt2 -o graph.json",
    "bundle one=model.pt2 -o bundle.pt2",
    "bind model.pt2 model.safetensors -o bound.pt2",
    "check examples/mlp.py:cpu",
    "check hf:gpt2 --target H100",
)
_RUN = """\
import sys
from fakexport.cli import main
code = main(sys.argv[1:])
sys.stderr.write("\\ntorch\\n" if "torch" in sys.modules else "\\nno torch\\n")
sys.exit(code)
"""


def main() -> int:
    parser = argparse.ArgumentParser(description="Times commands that do little work.")
    parser.add_argument("--rounds", type=int, default=3)
    options = parser.parse_args()
    with tempfile.TemporaryDirectory() as folder:
        _write_files(Path(folder))
        wall: dict[str, list[float]] = {}
        processor: dict[str, list[float]] = {}
        has_torch: dict[str, bool] = {}
        for turn in range(options.rounds + 1):
            for name in (*IMPORTS, *COMMANDS):
                taken, used, has_torch[name] = _timed(name, Path(folder))
                if turn:  # The first round fills the caches of the file system.
                    wall.setdefault(name, []).append(taken)
                    processor.setdefault(name, []).append(used)
    print("| | wall time | processor time | torch |\n|---|---:|---:|---|")
    for name, times in wall.items():
        median, cost = statistics.median(times), statistics.median(processor[name])
        print(f"| `{name}` | {median:.2f} s | {cost:.2f} s | {'yes' if has_torch[name] else 'no'} |")
    return 0


def _write_files(folder: Path) -> None:
    """Write the model's archive and its weights, and a link to the examples."""
    (folder / "examples").symlink_to(ROOT / "examples")
    code = (
        "import fakexport as fe, torch; from safetensors.torch import save_file\n"
        "model = torch.nn.Linear(4, 2)\n"
        "fe.save(fe.export(model, (torch.zeros(1, 4),)), 'model.pt2')\n"
        "fe.save(fe.export(model, (torch.zeros(3, 4),), dynamic_shapes='auto'), 'dynamic.pt2')\n"
        "save_file(dict(model.state_dict()), 'model.safetensors')\n"
    )
    subprocess.run([sys.executable, "-c", code], cwd=folder, check=True)


def _timed(name: str, folder: Path) -> tuple[float, float, bool]:
    """Return the wall and processor seconds of a row, and whether its process imported torch."""
    arguments = ["-c", IMPORTS[name]] if name in IMPORTS else ["-c", _RUN, *shlex.split(name)]
    before, start = os.times(), time.monotonic()
    done = subprocess.run(
        [sys.executable, *arguments], cwd=folder, capture_output=True, text=True, check=False
    )
    taken, after = time.monotonic() - start, os.times()
    if done.returncode not in (0, 1) or (done.returncode and not name.startswith("diff ")):
        raise SystemExit(f"{name} failed with exit code {done.returncode}:\n{done.stderr}")
    used = after.children_user + after.children_system - before.children_user - before.children_system
    return taken, used, name in IMPORTS or done.stderr.endswith("\ntorch\n")


if __name__ == "__main__":
    sys.exit(main())
