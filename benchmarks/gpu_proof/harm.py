"""Step: check that emulation does not disturb real GPU work in the same process, during and afterwards."""

from __future__ import annotations

import threading
from collections.abc import Callable, Mapping
from typing import Any

import torch
import torch.nn.functional as F
from torch import nn
from torch._subclasses.fake_tensor import FakeTensorMode

from benchmarks.gpu_proof import programs
from benchmarks.gpu_proof.parts import Part, run_parts
from benchmarks.gpu_proof.run import Run

_TOPOLOGIES = ("H100", "8xH100", "T4", "cpu", "cpu+2xH200")
_BESIDE = ("H100", "8xH100")
_ROUNDS = 3
_CAPTURED = ("literals", "vit-bf16")
_CACHES = ("_tls", "cache", "cache_hits", "cache_misses")


def step(run: Run) -> None:
    """Run each part in its own process, with the GPU visible."""
    run_parts(run, [Part("harm", name, limit_s=85) for name in run.chosen(PARTS)], jobs=2)


def after(run: Run, _: str) -> None:
    """Check that work on the GPU has the same results before and after emulation of each topology."""
    wanted = _work(run.device)
    _emulated("H100")  # Imports and registrations that stay.
    names, guards = _names_of_torch(), _guards()
    for topology in _TOPOLOGIES:
        memory = _memory(run)
        inside = _emulated(topology)
        taken = [now - before for now, before in zip(_memory(run), memory, strict=True)]
        now = _names_of_torch()
        changed = [name for name in {**names, **now} if now.get(name) != names.get(name)]
        is_same = _work(run.device) == wanted
        is_right = (
            is_same and not changed and guards == _guards() and not any(taken) and inside["is_exported"]
        )
        run.record(
            "harm", "after", topology=topology, ok=is_right, is_work_same=is_same, changed=changed[:10],
            are_guards_same=guards == _guards(), memory_taken=taken, **inside,
        )  # fmt: skip
    run.record("harm", "after", topology="an exception", ok=_left_by_an_exception(run.device) == wanted)


def before_first_use(run: Run, _: str) -> dict[str, Any]:
    """Check that emulation does not initialize the GPU, and that the GPU works afterwards."""
    for topology in _TOPOLOGIES:
        _emulated(topology)
    is_initialized = torch.cuda.is_initialized()
    has_context = not run.is_pretend and torch._C._cuda_hasPrimaryContext(0)
    work = _work(run.device)
    is_right = not is_initialized and not has_context
    return {"ok": is_right, "is_initialized": is_initialized, "has_context": has_context, "work": work}


def beside(run: Run, _: str) -> None:
    """Check models in this thread while a different thread works on the GPU."""
    wanted = _work(run.device)
    for topology in _BESIDE:
        wrong, rounds = _beside(topology, run.device, wanted)
        # More devices than the machine has; docs/devices.md forbids real work during such emulation.
        is_right = None if topology == "8xH100" else not wrong and rounds > 0
        run.record("harm", "beside", topology=topology, ok=is_right, rounds=rounds, wrong=wrong[:5])
    run.record("harm", "beside", topology="afterwards", ok=_work(run.device) == wanted)


def _beside(topology: str, device: str, wanted: list[Any]) -> tuple[list[str], int]:
    """Return the errors of the working thread, and the number of its rounds."""
    wrong: list[str] = []
    rounds, stop = [0], threading.Event()

    def work() -> None:
        while not stop.is_set():
            try:
                got = _work(device)
            except Exception as error:
                wrong.append(f"{type(error).__name__}: {error}"[:300])
            else:
                # torch.export in another thread changes the last digits of AdamW: `is_exporting` is global.
                wrong.extend(
                    f"{a} became {b}" for a, b in zip(wanted, got, strict=True) if not _is_near(a, b)
                )
            rounds[0] += 1

    thread = threading.Thread(target=work)
    thread.start()
    for _ in range(_ROUNDS):
        _emulated(topology)
    stop.set()
    thread.join()
    return wrong, rounds[0]


def visible(run: Run, _: str) -> None:
    """Check that emulation with a visible GPU captures the same programs as with a hidden GPU."""
    for name in _CAPTURED:
        hidden = programs.path_of(run, "emulated", name)
        if not hidden.exists():
            run.record("harm", name, error="not captured: run the step `fidelity` before")
            continue
        wanted = programs.read_lines(hidden)
        got = programs.captured(programs.CASES[name], run.profile)
        run.record("harm", name, ok=got == wanted, is_initialized=torch.cuda.is_initialized())


def _work(device: str) -> list[Any]:
    """Do many kinds of GPU work, and return numbers that must not change."""
    model = nn.Sequential(nn.Conv2d(3, 8, 3), nn.ReLU(), nn.Flatten(), nn.Linear(8 * 14 * 14, 16)).to(device)
    with torch.no_grad():  # Other threads draw from torch's generator.
        for parameter in model.parameters():
            parameter.copy_(torch.linspace(-0.1, 0.1, parameter.numel()).reshape(parameter.shape))
    # With `foreach`, AdamW fails while another thread runs `torch.export`: torch's `is_exporting` is global.
    optimizer = torch.optim.AdamW(model.parameters(), foreach=False)
    x = torch.arange(2 * 3 * 256, dtype=torch.float32).reshape(2, 3, 16, 16).to(device) / 999
    found: list[Any] = []
    for _ in range(2):
        optimizer.zero_grad()
        loss = model(x).square().mean()
        loss.backward()
        optimizer.step()
        found.append(float(loss.detach()))
    dtype = torch.float32 if device == "cpu" else torch.bfloat16
    query = torch.linspace(-1, 1, 2 * 4 * 32 * 64).reshape(2, 4, 32, 64).to(device, dtype)
    found.append(float(F.scaled_dot_product_attention(query, query, query, is_causal=True).float().sum()))
    random = query[:, 1].clone()
    random[0].uniform_(0, 1)
    singular = torch.linalg.svdvals(random[1].float())
    found += [str(random.device), float(singular.sum()), int((random > 0).nonzero().shape[1])]
    return found if device == "cpu" else [*found, *_work_of_cuda(model, x, query)]


def _work_of_cuda(model: nn.Module, x: torch.Tensor, query: torch.Tensor) -> list[Any]:
    """Use streams, events, graphs, autocast, gradient scaling and pinned memory."""
    torch.cuda.synchronize()
    stream, event = torch.cuda.Stream(), torch.cuda.Event()
    with torch.cuda.stream(stream):
        total = query.float().sum()
        event.record()
    event.wait()
    graph, ones = torch.cuda.CUDAGraph(), torch.ones(8, device=query.device)
    torch.cuda.synchronize()
    with torch.cuda.graph(graph):
        tripled = ones * 3
    graph.replay()
    torch.cuda.synchronize()
    with torch.autocast("cuda", dtype=torch.bfloat16):
        cast = str(model(x).dtype)
    torch.amp.GradScaler("cuda").scale(model(x).sum()).backward()
    is_pinned = torch.ones(1).pin_memory().is_pinned()
    name, index = torch.cuda.get_device_name(), torch.cuda.current_device()
    return [float(total), tripled.tolist(), cast, name, index, is_pinned]


def _is_near(a: Any, b: Any) -> bool:
    return a == b or (isinstance(a, float) and isinstance(b, float) and abs(a - b) <= 1e-4 * abs(a))


def _emulated(topology: str) -> dict[str, Any]:
    """Check a model, and use fake tensors, on a topology."""
    import fakexport as fe

    has_gpu = topology != "cpu"
    source = "examples/mlp.py:gpu" if has_gpu else "examples/mlp.py:cpu"
    report = fe.check(source, target=[topology])
    device = "cuda:0" if has_gpu else "cpu"
    with fe.emulate(topology), FakeTensorMode():
        weight = torch.ones(4, 4, device=device, requires_grad=True)
        (torch.ones(2, 4, device=device) @ weight).sum().backward()
        name = torch.cuda.get_device_name(0) if has_gpu else "none"
    return {"is_exported": report.verdicts[0].program is not None, "name": name}


def _left_by_an_exception(device: str) -> list[Any]:
    import fakexport as fe

    try:
        with fe.emulate("8xH100"):
            raise KeyError
    except KeyError:
        return _work(device)


def _memory(run: Run) -> tuple[int, int]:
    return (0, 0) if run.is_pretend else (torch.cuda.memory_allocated(), torch.cuda.memory_reserved())


def _names_of_torch() -> dict[str, int]:
    """Return the identities of all names that emulation could replace."""
    owners = (torch.cuda, torch.accelerator, torch, torch.version, torch._C, FakeTensorMode)
    return {
        f"{owner.__name__}.{name}": id(value)
        for owner in owners
        for name, value in vars(owner).items()
        if not name.startswith("__") and name not in _CACHES
    }


def _guards() -> dict[str, int | None]:
    from fakexport._torch.emulation.device_guard import guard_address

    return {kind: guard_address(kind) for kind in ("cuda", "xpu", "mps", "cpu")}


PARTS: Mapping[str, Callable[[Run, str], Any]] = {
    "after": after,
    "before_first_use": before_first_use,
    "beside": beside,
    "visible": visible,
}
CASES = tuple(PARTS)
