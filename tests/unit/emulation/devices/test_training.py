"""A training loop on virtual devices does to shapes, dtypes and devices what it does for real."""

from __future__ import annotations

import inspect

import pytest
import torch
from torch import nn
from torch.utils.checkpoint import checkpoint

import fakexport as fe

OPTIMIZERS = [
    kind
    for kind in vars(torch.optim).values()
    if inspect.isclass(kind) and issubclass(kind, torch.optim.Optimizer) and kind is not torch.optim.Optimizer
]
OPTIONS = (
    {"foreach": True},
    {"fused": True},
    {"capturable": True},
    {"foreach": True, "capturable": True},
    {"amsgrad": True},
    {"momentum": 0.9},
    {"maximize": True, "weight_decay": 0.1},
)
# With the options of these two, the others do the same.
VARIANTS = [(kind, {}) for kind in OPTIMIZERS] + [
    (kind, options)
    for kind in (torch.optim.Adam, torch.optim.SGD)
    for options in OPTIONS
    if options.keys() <= inspect.signature(kind).parameters.keys()
]


def trained(kind, options, device):
    """Parameters and state of the optimizer after two steps."""
    model = nn.Sequential(nn.Linear(4, 3), nn.Linear(3, 3, bias=False)).to(device)
    data = torch.ones(2, 4, device=device)
    if kind is torch.optim.SparseAdam:
        model, data = nn.Embedding(5, 3, sparse=True).to(device), torch.tensor([1, 2], device=device)
    parameters = [p for p in model.parameters() if p.dim() == 2 or kind is not torch.optim.Muon]
    few = {"max_iter": 3} if kind is torch.optim.LBFGS else {}
    optimizer = kind(parameters, **{"lr": 0.01, **few, **options})

    def closure():
        optimizer.zero_grad()
        loss = model(data).sum()
        loss.backward()
        return loss

    for _ in range(2):
        if kind is torch.optim.LBFGS:
            optimizer.step(closure)
        else:
            closure()
            optimizer.step()
    return parameters, optimizer.state_dict()["state"]


def described(value):
    """Shapes, dtypes and devices."""
    if isinstance(value, torch.Tensor):
        return tuple(value.shape), value.dtype, str(value.device)
    if isinstance(value, dict):
        return {key: described(item) for key, item in value.items()}
    if isinstance(value, (list, tuple)):
        return [described(item) for item in value]
    return type(value)


def on(device, found, stays):
    """A description with another device, but for the counters that torch keeps on the CPU."""
    if isinstance(found, tuple):
        return found[0], found[1], device
    if isinstance(found, dict):
        return {key: item if key in stays else on(device, item, stays) for key, item in found.items()}
    return [on(device, item, stays) for item in found] if isinstance(found, list) else found


@pytest.mark.parametrize(("kind", "options"), VARIANTS)
def test_an_optimizer_steps_as_on_the_cpu(kind, options):
    real = described(trained(kind, {k: v for k, v in options.items() if k != "capturable"}, "cpu"))
    is_on_device = options.get("capturable") or options.get("fused") or kind is torch.optim.ASGD

    with fe.fake_mode("H100"):
        fake = described(trained(kind, options, "cuda"))

    counters = () if is_on_device else ("step", "eta", "mu", "mu_product")
    if options.get("capturable"):  # Then a counter is a tensor, and not a number of Python.
        fake, real = (without_types(found) for found in (fake, real))
    if kind is torch.optim.LBFGS:  # Its state follows the values of a line search.
        fake, real = fake[0], real[0]
    assert fake == on("cuda:0", real, counters)


def without_types(found):
    if isinstance(found, dict):
        return {key: without_types(item) for key, item in found.items()}
    return [without_types(item) for item in found] if isinstance(found, list) else found


@pytest.mark.parametrize(("target", "device"), [("xpu", "xpu"), ("mps", "mps")])
def test_an_optimizer_steps_on_every_kind_of_device(target, device):
    with fe.fake_mode(target):
        parameters, _ = trained(torch.optim.AdamW, {}, device)

        assert {p.device for p in parameters} == {torch.device(device, 0)}


@pytest.mark.parametrize(("target", "device"), [("H100", "cuda"), ("xpu", "xpu")])
def test_mixed_precision_with_scaled_gradients(target, device):
    with fe.fake_mode(target):
        model = nn.Linear(4, 4, device=device)
        optimizer = torch.optim.AdamW(model.parameters(), fused=True)
        scaler = torch.amp.GradScaler(device)
        with torch.autocast(device, dtype=torch.float16):
            output = model(torch.ones(2, 4, device=device))
        scaler.scale(output.float().sum()).backward()
        scaler.unscale_(optimizer)
        norm = nn.utils.clip_grad_norm_(model.parameters(), 1.0, foreach=True)
        scaler.step(optimizer)
        scaler.update()

        assert output.dtype is torch.float16
        assert norm.device == model.weight.grad.device == torch.device(device, 0)


@pytest.mark.parametrize("use_reentrant", [True, False])
def test_checkpointed_activations_under_autocast(use_reentrant):
    with fe.fake_mode("H100"):
        model = nn.Sequential(nn.Linear(4, 4), nn.Dropout(0.1)).cuda()
        x = torch.ones(2, 4, device="cuda", requires_grad=True)
        with torch.autocast("cuda", dtype=torch.bfloat16):
            y = checkpoint(model, x, use_reentrant=use_reentrant)
        y.float().sum().backward()

        assert y.dtype is torch.bfloat16
        assert x.grad.device == torch.device("cuda:0")


ANSWERED = {
    "torch.cuda.current_stream().is_capturing()": False,
    "torch.cuda.current_stream().device_type": 1,
    "torch.cuda.current_stream(1).device_index": 1,
    "torch.cuda.Event().query()": True,
    "torch.cuda.memory_summary(1)": "cuda:1 is virtual: nothing is allocated on it",
    "torch.cuda.memory_snapshot()": [],
    "torch.cuda.get_allocator_backend()": "native",
    "torch.cuda.nvtx.range_push('layer')": 0,
    "torch.cuda.profiler.start()": 0,
    "torch.cuda._sleep(1)": None,
}
REFUSED = (
    "torch.cuda.graph_pool_handle()",
    "torch.cuda.make_graphed_callables(torch.nn.ReLU(), (torch.ones(1),))",
    "torch.cuda.current_blas_handle()",
    "torch.cuda.caching_allocator_alloc(8)",
    "torch.cuda.utilization()",
    "torch.cuda.Event().ipc_handle()",
)


def test_what_a_training_loop_asks_is_answered():
    with fe.fake_mode("2xH100"):
        assert {question: eval(question) for question in ANSWERED} == ANSWERED


@pytest.mark.parametrize("question", REFUSED)
def test_what_has_no_answer_is_refused_by_a_sentence(question):
    with fe.fake_mode("2xH100"), pytest.raises(RuntimeError, match="virtual"):
        eval(question)
