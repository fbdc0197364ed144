"""What each of several gloo processes on the CPU does; a module of its own, which they import."""

from __future__ import annotations

import os
import sys
from collections import Counter
from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch
import torch.distributed as dist
import torch.multiprocessing as mp
from torch.utils._python_dispatch import TorchDispatchMode

from tests.forked import forking

__all__ = ["spawned"]

Work = Callable[[Path, int, int], Any]


def spawned(work: Work, folder: Path, ranks: int) -> list[Any]:
    """Return what `work(folder, rank, ranks)` returns in each process; tensors and plain values."""
    forking()  # With the imports, which each process would take seconds for.
    start = "forkserver" if sys.platform == "linux" else "spawn"
    mp.start_processes(_process, (work, folder, ranks), nprocs=ranks, start_method=start)
    return [torch.load(folder / f"result{rank}.pt") for rank in range(ranks)]


def _process(rank: int, work: Work, folder: Path, ranks: int) -> None:
    torch.set_num_threads(1)
    store = f"file://{folder}/store_{work.__name__}"
    dist.init_process_group("gloo", init_method=store, rank=rank, world_size=ranks)
    try:
        with torch.no_grad():
            torch.save(work(folder, rank, ranks), folder / f"result{rank}.pt")
    finally:
        dist.destroy_process_group()
    # DTensor and `torch.distributed.nn` keep the group, and with it threads of gloo (seen with torch 2.13).
    # A thread that still releases a tensor while Python ends would abort the process.
    sys.stdout.flush()
    sys.stderr.flush()
    os._exit(0)


def run_rank_program(folder: Path, rank: int, ranks: int) -> list[torch.Tensor]:
    """Load the archive of a rank, bind it to the whole checkpoint, and return the logits of each input."""
    from fakexport.archive import bind, load

    program = bind(load(folder / f"rank{rank}.pt2", trust=True), folder / "model.safetensors").module()
    return [program(ids)["logits"] for ids in torch.load(folder / "ids.pt")]


def run_ranges(folder: Path, rank: int, ranks: int) -> list[torch.Tensor]:
    """Open the programs of a rank, which divide the batch among them. Return the logits of each input."""
    from fakexport.deploy import open_program, rank_of_archive

    own = rank_of_archive(folder / "ranks.pt2", rank)
    program = open_program(folder / "ranks.pt2", folder / "model.safetensors", method=own.method, trust=True)
    return [program({"input_ids": ids})["logits"] for ids in torch.load(folder / "ids.pt")]


def run_stage(folder: Path, rank: int, ranks: int) -> dict[str, torch.Tensor]:
    """Run a pipeline stage together with the other processes."""
    from fakexport.deploy import open_program
    from fakexport.deploy.pipeline import pipelined

    stage = pipelined(open_program(folder / "stages.pt2", method=f"stage{rank}"), 1)
    return stage(torch.load(folder / "inputs.pt"))


def count_collectives(folder: Path, rank: int, ranks: int) -> dict[tuple[str, int], int]:
    """Let transformers shard its model, and return how many collectives of which bytes one call makes."""
    import transformers
    from transformers.distributed import DistributedConfig

    model = transformers.AutoModelForCausalLM.from_pretrained(
        folder / "model", distributed_config=DistributedConfig(tp_size=ranks)
    ).eval()
    seen = _Collectives()
    with seen:
        model(input_ids=torch.load(folder / "ids.pt")[0])
    return dict(seen.found)


class _Collectives(TorchDispatchMode):
    """Counts in-place collectives of c10d, and functional ones below DTensor."""

    def __init__(self) -> None:
        super().__init__()
        self.found: Counter[tuple[str, int]] = Counter()

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        if any(kind.__name__ == "DTensor" for kind in types):
            return NotImplemented
        kind = {
            "c10d.allreduce_.default": "all_reduce",
            "_c10d_functional.all_reduce.default": "all_reduce",
            "_c10d_functional.all_gather_into_tensor.default": "all_gather",
        }.get(str(func))
        if kind is not None:
            given = args[0][0] if isinstance(args[0], (list, tuple)) else args[0]
            self.found[kind, given.numel() * given.itemsize] += 1
        return func(*args, **(kwargs or {}))
