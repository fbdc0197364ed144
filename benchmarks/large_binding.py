"""Measure time and memory of verifying, binding, linking, copying, loading and running a 16 GB checkpoint.

The checkpoint has random bfloat16 weights in the shapes of a config, as safetensors shards with an index.
Each step runs in its own process. With this checkpoint, the program of the linked archive and eager
transformers must return the same logits, bit for bit.

    python -m benchmarks.large_binding [--config llama-3.1-8b] [--folder DIR] [--shards 5]

This needs disk space for two copies of the checkpoint, which are removed at the end. Linux only: memory is
read from /proc.
"""

from __future__ import annotations

import argparse
import json
import shutil
import sys
import tempfile
import threading
import time
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

from benchmarks.fresh_process import ROOT, in_a_process

_POOL = 2**27 + 1  # Odd, so that no two tensors begin at the same random number.
_STEP_S = 0.02


def main() -> int:
    parser = argparse.ArgumentParser(description="Binds a checkpoint that is as large as the memory.")
    parser.add_argument("--config", default="llama-3.1-8b", help="A file of examples/configs.")
    parser.add_argument("--folder", type=Path, help="Where to write; default: a temporary folder.")
    parser.add_argument("--shards", type=int, default=5)
    parser.add_argument("--step", help=argparse.SUPPRESS)
    options = parser.parse_args()
    if options.step:
        print(json.dumps(_STEPS[options.step](options)))
        return 0
    with tempfile.TemporaryDirectory(dir=options.folder) as folder:
        for step in _STEPS:
            shards = ("--shards", str(options.shards))
            arguments = ("--step", step, "--config", options.config, "--folder", folder, *shards)
            print(step, in_a_process("benchmarks.large_binding", *arguments), flush=True)
    return 0


class Memory:
    """Sample the peak memory of this process: its own memory, and file pages, which the system may drop."""

    def __init__(self) -> None:
        self._before = _resident()
        self._peak = dict(self._before)
        self._is_over = threading.Event()
        self._thread = threading.Thread(target=self._sample, daemon=True)

    def _sample(self) -> None:
        while not self._is_over.wait(_STEP_S):
            self._peak = {name: max(size, self._peak[name]) for name, size in _resident().items()}

    def __enter__(self) -> Memory:
        self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._is_over.set()
        self._thread.join()
        self._peak = {name: max(size, self._peak[name]) for name, size in _resident().items()}

    @property
    def growth(self) -> dict[str, str]:
        return {
            f"{name}_growth": f"{(self._peak[name] - self._before[name]) / 1e6:.0f} MB" for name in self._peak
        }


def _resident() -> dict[str, int]:
    lines = Path("/proc/self/status").read_text(encoding="ascii").splitlines()
    values = {line.partition(":")[0]: line.split()[1] for line in lines if line.startswith("Rss")}
    return {"own": int(values["RssAnon"]) * 1024, "file": int(values["RssFile"]) * 1024}


def measured(run: Callable[[], Any]) -> tuple[dict[str, Any], Any]:
    """Return the times and memory growth of a function as a dict, and its result."""
    cpu, wall = time.process_time(), time.perf_counter()
    with Memory() as memory:
        result = run()
    times = {"wall_s": round(time.perf_counter() - wall, 2), "cpu_s": round(time.process_time() - cpu, 2)}
    return {**times, **memory.growth}, result


def write_checkpoint(options: argparse.Namespace) -> dict[str, Any]:
    """Write the checkpoint shard by shard. Each tensor gets a different part of a pool of random numbers."""
    import torch
    from safetensors.torch import save_file

    from fakexport.emulation.devices import emulate
    from fakexport.emulation.fake import build
    from fakexport.models.sources import resolve

    source = resolve(f"hf:{_config(options)}")
    with emulate("cpu"):
        module = build(source.factory, device_map="cpu", dtype=torch.bfloat16).module
    shapes = {name: tuple(tensor.shape) for name, tensor in module.state_dict().items()}
    sizes = {name: 2 * torch.Size(shape).numel() for name, shape in shapes.items()}
    torch.manual_seed(0)
    pool = torch.randn(_POOL).mul_(0.02).to(torch.bfloat16)
    folder, start = _checkpoint(options), 0
    weight_map: dict[str, str] = {}
    folder.mkdir()
    for index, names in enumerate(_shards(sizes, options.shards)):
        shard, file = {}, f"model-{index + 1:05}-of-{options.shards:05}.safetensors"
        for name in names:
            shard[name] = torch.empty(shapes[name], dtype=torch.bfloat16)
            start = _fill(shard[name].view(-1), pool, start)
            if len(shapes[name]) == 1:  # Norms scale by about one.
                shard[name] += 1
        save_file(shard, folder / file)
        weight_map |= dict.fromkeys(names, file)
    (folder / "model.safetensors.index.json").write_text(json.dumps({"weight_map": weight_map}))
    shutil.copy(_config(options), folder / "config.json")
    return {"bytes": sum(sizes.values()), "tensors": len(sizes), "shards": len(set(weight_map.values()))}


def _shards(sizes: Mapping[str, int], count: int) -> list[list[str]]:
    shards: list[list[str]] = [[] for _ in range(count)]
    total, done = sum(sizes.values()), 0
    for name, size in sizes.items():
        shards[min(done * count // total, count - 1)].append(name)
        done += size
    return shards


def _fill(flat: Any, pool: Any, start: int) -> int:
    """Fill a tensor from the pool, beginning at `start` and wrapping around. Return the next position."""
    done = 0
    while done < len(flat):
        count = min(len(flat) - done, len(pool) - start)
        flat[done : done + count] = pool[start : start + count]
        done, start = done + count, (start + count) % len(pool)
    return start


def export(options: argparse.Namespace) -> dict[str, Any]:
    import fakexport as fe
    from benchmarks.archive_time import exported

    fe.save(exported(options.config), _folder(options) / "model.pt2")
    return {"bytes": (_folder(options) / "model.pt2").stat().st_size}


def verify(options: argparse.Namespace) -> dict[str, Any]:
    import fakexport as fe

    program = fe.load(_folder(options) / "model.pt2")
    figures, report = measured(lambda: fe.verify_weights(program, _checkpoint(options)))
    assert report.is_bindable, report.summary
    return figures


def bind(options: argparse.Namespace) -> dict[str, Any]:
    import fakexport as fe

    program = fe.load(_folder(options) / "model.pt2")
    figures, bound = measured(lambda: fe.bind(program, _checkpoint(options)))
    assert bound.state_dict["lm_head.weight"].numel() > 0
    return figures


def link(options: argparse.Namespace) -> dict[str, Any]:
    """Bind and save as `fakexport bind --link` does."""
    return _bound_and_saved(options, "linked.pt2", is_linked=True)


def copy(options: argparse.Namespace) -> dict[str, Any]:
    """Bind and save as `fakexport bind` does."""
    return _bound_and_saved(options, "bound.pt2", is_linked=False)


def _bound_and_saved(options: argparse.Namespace, name: str, *, is_linked: bool) -> dict[str, Any]:
    import fakexport as fe
    from fakexport.archive.weights import open_checkpoint

    path = _folder(options) / name
    program = fe.load(_folder(options) / "model.pt2")

    def run() -> None:
        checkpoint = open_checkpoint(_checkpoint(options))
        fe.save(fe.bind(program, checkpoint), path, link=checkpoint if is_linked else None)

    figures, _ = measured(run)
    return {**figures, "bytes": path.stat().st_size}


def load_linked(options: argparse.Namespace) -> dict[str, Any]:
    return _loaded(options, "linked.pt2", check_weights=True)


def load_linked_unchecked(options: argparse.Namespace) -> dict[str, Any]:
    return _loaded(options, "linked.pt2", check_weights=False)


def load_copy(options: argparse.Namespace) -> dict[str, Any]:
    return _loaded(options, "bound.pt2", check_weights=True)


def load_copy_unchecked(options: argparse.Namespace) -> dict[str, Any]:
    return _loaded(options, "bound.pt2", check_weights=False)


def remove_copy(options: argparse.Namespace) -> dict[str, Any]:
    (_folder(options) / "bound.pt2").unlink()
    return {}


def _loaded(options: argparse.Namespace, name: str, *, check_weights: bool) -> dict[str, Any]:
    import fakexport as fe

    fe.load(_folder(options) / "model.pt2")  # Import everything first: imports are not measured.
    figures, program = measured(lambda: fe.load(_folder(options) / name, check_weights=check_weights))
    assert len(program.state_dict) > 0
    return figures


def run_linked(options: argparse.Namespace) -> dict[str, Any]:
    import fakexport as fe
    from fakexport.deploy import run

    program = fe.load(_folder(options) / "linked.pt2", check_weights=False)
    figures, outputs = measured(lambda: run(program, _inputs()))
    _keep(options, "linked", outputs["logits"])
    return figures


def run_eager(options: argparse.Namespace) -> dict[str, Any]:
    """Run the transformers model in eager mode on the tensors that safetensors' own reader maps."""
    import torch
    from safetensors.torch import load_file
    from transformers import AutoConfig, AutoModelForCausalLM

    config = AutoConfig.from_pretrained(_checkpoint(options))
    with torch.device("meta"):
        model = AutoModelForCausalLM.from_config(config, dtype=torch.bfloat16).eval()
    for shard in sorted(_checkpoint(options).glob("*.safetensors")):
        model.load_state_dict(load_file(shard), strict=False, assign=True)
    rotary = model.model.rotary_emb
    model.model.rotary_emb = type(rotary)(config)  # Its table is not in the checkpoint.
    assert not [name for name, t in (*model.named_parameters(), *model.named_buffers()) if t.is_meta]
    with torch.no_grad():
        figures, outputs = measured(lambda: model(**_inputs(), use_cache=False))
    _keep(options, "eager", outputs.logits)
    return figures


def compare(options: argparse.Namespace) -> dict[str, Any]:
    import torch

    linked, eager = (torch.load(_folder(options) / f"{name}.pt") for name in ("linked", "eager"))
    assert eager.isfinite().all()
    assert eager.std() > 0
    assert torch.equal(linked, eager), f"they differ by {(linked - eager).abs().max()}"
    return {"logits": list(eager.shape), "dtype": str(eager.dtype), "are_equal": True}


def _inputs() -> dict[str, Any]:
    import torch

    ids = torch.tensor([[1, 15, 300, 9, 1024, 77, 4096, 2]])
    return {"input_ids": ids, "attention_mask": torch.ones_like(ids)}


def _keep(options: argparse.Namespace, name: str, logits: Any) -> None:
    import torch

    torch.save(logits.detach().clone(), _folder(options) / f"{name}.pt")


def _folder(options: argparse.Namespace) -> Path:
    return Path(options.folder)


def _checkpoint(options: argparse.Namespace) -> Path:
    return _folder(options) / "checkpoint"


def _config(options: argparse.Namespace) -> Path:
    return ROOT / "examples" / "configs" / f"{options.config}.json"


_STEPS: dict[str, Callable[[argparse.Namespace], dict[str, Any]]] = {
    step.__name__: step
    for step in (
        write_checkpoint,
        export,
        verify,
        bind,
        link,
        load_linked,
        load_linked_unchecked,
        run_linked,
        run_eager,
        compare,
        copy,
        load_copy,
        load_copy_unchecked,
        remove_copy,
    )
}  # fmt: skip


if __name__ == "__main__":
    sys.exit(main())
