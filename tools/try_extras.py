"""Install a built wheel with each extra alone, in an empty environment, and run what the extra is for.

    make test-extras                                                # every extra, after `make test-package`
    python tools/try_extras.py dist/fakexport-0.1.0-py3-none-any.whl onnx text

torch is the version of constraints.txt; without an index of CPU builds, pip takes the one with CUDA.
"""

import os
import subprocess
import sys
import tempfile
import time
import tomllib
import venv
from collections.abc import Sequence
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
DEVELOPMENT = {"bench", "browser", "dev", "docs", "fuzz", "lint", "netron", "test", "test-core"}
"""Extras that targets of the Makefile install and use."""

_LANGUAGE_MODEL = """\
from tokenizers import Tokenizer, models
from transformers import LlamaConfig, LlamaForCausalLM
sizes = dict(hidden_size=16, intermediate_size=24, num_attention_heads=2, num_key_value_heads=2, vocab_size=8)
LlamaForCausalLM(LlamaConfig(**sizes, num_hidden_layers=1, eos_token_id=7)).save_pretrained("llm")
Tokenizer(models.WordLevel({str(i): i for i in range(8)}, "0")).save("tokenizer.json")
"""
_ADAPTER = """\
from peft import LoraConfig, get_peft_model
from transformers import LlamaForCausalLM
model = LlamaForCausalLM.from_pretrained("llm")
get_peft_model(model, LoraConfig(target_modules=["q_proj"])).save_pretrained("lora")
"""
_QUANTIZED = """\
import torch
from torchao.quantization import Int8WeightOnlyConfig, quantize_
def factory():
    model = torch.nn.Sequential(torch.nn.Linear(64, 64)).eval()
    quantize_(model, Int8WeightOnlyConfig())
    return model, (torch.zeros(1, 64),)
"""
_FILES = {
    "weights.py": "import mlp, torch\ntorch.save(mlp.cpu()[0].state_dict(), 'mlp.pt')\n",
    "llm.py": _LANGUAGE_MODEL,
    "lora.py": _ADAPTER,
    "quantized.py": _QUANTIZED,
    "zoo.yaml": "models: [mlp.py:cpu]\n",
}
USES = {
    # Later extras use the files that the first two write.
    "": [
        "fakexport export mlp.py:cpu -o mlp.pt2",
        "python weights.py",
        "fakexport bind mlp.pt2 mlp.pt -o bound.pt2",
    ],
    "transformers": ["python llm.py", "fakexport export hf:llm --workload generate -o llm.pt2"],
    "text": ["fakexport generate llm.pt2 llm --prompt 3 --tokenizer tokenizer.json --max-new-tokens 2"],
    "peft": ["python lora.py", "fakexport check hf:llm --adapter lora"],
    "timm": ["fakexport check timm:resnet18 --target H100"],
    "torchvision": ["fakexport check torchvision:resnet18 --target H100"],
    "diffusers": ["fakexport check diffusers:configs/sdxl-vae.json --component decoder"],
    "torchao": ["fakexport check quantized.py:factory"],
    "executorch": ["fakexport compile bound.pt2 --to executorch -o mlp.pte"],
    "onnx": ["fakexport compile mlp.pt2 --to onnx -o mlp.onnx"],
    "charts": ["fakexport plan mlp.py:cpu --timeline plan.svg"],
    "sweep": ["fakexport sweep zoo.yaml -o run.jsonl"],
    "ray": ["fakexport sweep zoo.yaml -o ray.jsonl --ray local"],
    "cuda": ["fakexport compile mlp.pt2 --to aoti --target H100 -o mlp.aoti.pt2"],
}
USES["all"] = [command for commands in USES.values() for command in commands]


def extras() -> set[str]:
    """Return the extras of pyproject.toml that someone who uses fakexport may install."""
    project = tomllib.loads((ROOT / "pyproject.toml").read_text("utf-8"))["project"]
    return set(project["optional-dependencies"]) - DEVELOPMENT


def try_extra(wheel: Path, extra: str, folder: Path) -> str | None:
    """Install an extra, and run its commands in `folder`. Return the output of the command that fails."""
    with tempfile.TemporaryDirectory() as home:
        venv.create(home, with_pip=True)
        programs = Path(home) / "bin"
        wanted = f"{wheel}[{extra}]" if extra else str(wheel)
        install = ["-m", "pip", "install", "--quiet", "--constraint", str(ROOT / "constraints.txt"), wanted]
        environment = {name: value for name, value in os.environ.items() if name != "PYTHONPATH"}
        environment["PATH"] = f"{programs}{os.pathsep}{environment['PATH']}"
        for command in ([str(programs / "python"), *install], *(use.split() for use in USES[extra])):
            done = subprocess.run(command, cwd=folder, env=environment, capture_output=True, text=True)
            if done.returncode:
                return f"{' '.join(command)}\n{done.stdout}{done.stderr}"
    return None


def main(wheel: str, chosen: Sequence[str]) -> int:
    """Try the chosen extras, or all, print a line for each, and return the exit code."""
    failed = 0
    with tempfile.TemporaryDirectory() as text:
        folder = Path(text)
        for name, content in _FILES.items():
            (folder / name).write_text(content)
        (folder / "mlp.py").write_bytes((ROOT / "examples" / "mlp.py").read_bytes())
        (folder / "configs").symlink_to(ROOT / "examples" / "configs")
        for extra in dict.fromkeys(["", "transformers", *chosen] if chosen else USES):
            started = time.monotonic()
            fault = try_extra(Path(wheel).resolve(), extra, folder)
            failed += fault is not None
            state = "works" if fault is None else f"FAILS: {fault}"
            sys.stdout.write(f"{extra or 'no extra'}: {state} ({time.monotonic() - started:.0f} s)\n")
            sys.stdout.flush()
    return int(failed > 0)


if __name__ == "__main__":
    sys.exit(main(sys.argv[1], sys.argv[2:]))
