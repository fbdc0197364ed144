"""Models that repeat operators with one thing changed that a memo of operators could miss.

The oracle is a trace by stock torch, node by node, with every fast path off. The models repeat each call, so
that the memo has an answer by the time something differs.
"""

from __future__ import annotations

import contextlib
import os
import threading

import pytest
import torch
from torch import nn
from torch.overrides import TorchFunctionMode
from torch.utils._python_dispatch import TorchDispatchMode

import fakexport as fe
from fakexport._torch.speed.operator_memo import OperatorMemo
from fakexport.emulation.devices import emulate
from fakexport.exporting.capture.capture import capture
from tests.identity import first_difference
from tests.unit.exporting.capture.memo_models import (
    Repeats,
    X,
    attends,
    both_ways,
    check,
    check_outcome,
    slow,
)

AUTO = torch.export.Dim.AUTO


def mixed(*variants):
    """Steps that take each variant in turn, so that each one is repeated."""
    return lambda model, x, at: variants[at % len(variants)](model, x)


CONSTANTS = {
    "true, one and one point zero": mixed(
        lambda m, x: x * True, lambda m, x: x * 1, lambda m, x: x * 1.0, lambda m, x: x + (x.int() * 1.0)
    ),
    "minus zero": mixed(lambda m, x: x + 0.0, lambda m, x: x + -0.0),
    "not a number": mixed(lambda m, x: x.clamp(min=float("nan")), lambda m, x: x.clamp(min=float("-inf"))),
    "promotion by a scalar tensor": mixed(
        lambda m, x: x.half() * torch.ones((), dtype=torch.float64) + 0.0 * x,
        lambda m, x: x.half() * torch.ones(1, dtype=torch.float64) + 0.0 * x,
    ),
    "integers and scalars": mixed(
        lambda m, x: (x.int() + 1).float(), lambda m, x: x.int() + 1.0, lambda m, x: x.int() / 2
    ),
    "axes": mixed(lambda m, x: x + x.sum(0), lambda m, x: x + x.sum(1, True), lambda m, x: x + x.sum(-2)),
    "device of a new tensor": mixed(
        lambda m, x: x + torch.ones(6, device="cpu"), lambda m, x: x + torch.ones(6, device=x.device)
    ),
    "memory format": mixed(
        lambda m, x: x + x[None, :, :, None].contiguous(memory_format=torch.channels_last)[0, :, :, 0],
        lambda m, x: x + x[None, :, :, None].contiguous()[0, :, :, 0],
    ),
}
ALIASES = {
    "the same tensor twice": mixed(lambda m, x: torch.add(x, x), lambda m, x: torch.add(x, x.clone())),
    "two views of one memory": mixed(
        lambda m, x: torch.cat([x[:2], x[2:]]), lambda m, x: torch.cat([x[:2], x[:2]])
    ),
    "a write through a view": lambda m, x, at: (y := x * 2, y[1:].add_(1), y)[-1],
    "a write that overlaps": lambda m, x, at: (y := x * 2, y[:3].copy_(y[1:].clone()), y)[-1],
    "an expanded tensor": mixed(
        lambda m, x: x[:1].expand(4, 6) * 1, lambda m, x: (x[:1] * 1).expand(4, 6) + 0
    ),
    "an out argument": lambda m, x, at: torch.add(x, 1, out=torch.empty(4, 6)) + x,
    "a part that is written and read": lambda m, x, at: (
        parts := [p.clone() for p in x.unbind(0)],
        parts[0].mul_(2),
        torch.stack(parts),
    )[-1],
    "data": lambda m, x, at: (y := x * 2, y.data.add_(1), y)[-1],
    "shape": lambda m, x, at: (y := x * 2, y.unsqueeze_(0).squeeze_(0).t_(), y.t())[-1],
    "version": lambda m, x, at: (y := x * 2, y.add_(1) * (1 + y._version))[-1],
    "set": lambda m, x, at: (y := x * 2, y.set_(x.detach().clone()), y)[-1],
    "resized": lambda m, x, at: (y := torch.empty(0), y.resize_(4, 6).zero_(), x + y)[-1],
    "in place": lambda m, x, at: (x * 1).add_(x).mul_(2).relu_(),
    "in place on a tensor without gradient": lambda m, x, at: torch.zeros(4, 6).add_(x @ m.weight),
    "indexed in place": lambda m, x, at: torch.zeros(4, 6).index_add_(0, torch.arange(4), x @ m.weight),
    "conjugate": lambda m, x, at: torch.view_as_real(torch.view_as_complex(x.view(4, 3, 2)).conj()).view(
        4, 6
    ),
}


@contextlib.contextmanager
def default_dtype(dtype):
    before = torch.get_default_dtype()
    torch.set_default_dtype(dtype)
    try:
        yield
    finally:
        torch.set_default_dtype(before)


@contextlib.contextmanager
def environment(name, value):
    os.environ[name] = value
    try:
        yield
    finally:
        del os.environ[name]


class Doubles(TorchFunctionMode):
    def __torch_function__(self, func, types, args=(), kwargs=None):
        found = func(*args, **(kwargs or {}))
        return found * 2 if func is torch.relu else found


class Counts(TorchDispatchMode):
    def __torch_dispatch__(self, func, types, args=(), kwargs=None):
        return func(*args, **(kwargs or {}))


def computes(model, x):
    return torch.relu(x @ model.weight).float() + torch.arange(6) / 2 + torch.full((6,), 1.5)


MODES = {
    "autocast": lambda: torch.autocast("cpu", dtype=torch.bfloat16),
    "autocast off": lambda: torch.autocast("cpu", enabled=False),
    "no gradients": torch.no_grad,
    "inference": torch.inference_mode,
    "default dtype": lambda: default_dtype(torch.float64),
    "default device": lambda: torch.device("meta"),
    "math attention": lambda: torch.nn.attention.sdpa_kernel(torch.nn.attention.SDPBackend.MATH),
    "own function mode": Doubles,
    "own dispatch mode": Counts,
    "saved tensors": lambda: torch.autograd.graph.saved_tensors_hooks(lambda t: t, lambda t: t),
    "anomalies": lambda: torch.autograd.set_detect_anomaly(True),
    "environment": lambda: environment("TORCH_ALLOW_TF32_CUBLAS_OVERRIDE", "1"),
    "forward gradients": torch.autograd.forward_ad.dual_level,
    "view replay": lambda: torch.autograd._force_original_view_tracking(True),
}


def in_some(make, inner):
    """Enter a context around every fourth call."""

    def step(model, x, at):
        if at % 4 != 3:
            return inner(model, x)
        with make():
            return inner(model, x)

    return step


def sizes(model, x, at, y):
    return x + y.sum(0, keepdim=True)[:, :6] * x.shape[0] + torch.ones(x.shape[0] * 2)[: x.shape[0], None]


def reshapes(model, x, at, y):
    return (x.reshape(-1, 2).t().contiguous().view(-1) * y.shape[0]).reshape(x.shape[0], -1)


def checks_late(model, x, at, y):
    if at == 5:
        torch._check(x.shape[0] == y.shape[0])
    return x + (y[: x.shape[0]] if at > 5 else y.sum())


def branches_late(model, x, at, y):
    if at == 5 and x.shape[0] > 3:
        x = x * 2
    return torch.cat([x, y])[: x.shape[0]]


def counts_rows(model, x, at, y):
    rows = (y > 0).sum().item()
    torch._check(rows >= 0)
    torch._check(rows < 100)
    return x + torch.zeros(rows, 6).sum(0)


def begins_late(model, x, at, y):
    """Use an operator for the first time in a later call."""
    return x if at == 0 else torch.cat([torch.roll(x, 1, -1)[:, :3], x.flip(-1)[:, 3:]], -1).repeat(2, 1)[:4]


def masks(model, x, at, y):
    return x + y[y > 0].sum() + y[torch.arange(2)].sum()


def grown(read):
    """Use what is read from the result of a repeated operator, in every second call."""
    return lambda m, x, at: (y := x @ m.weight, y + (read(y) if at % 2 else 0))[-1]


LAYOUTS = {
    "a stride": lambda y: y[:, None].expand(-1, 2, -1).contiguous().stride(0) * y.shape[0],
    "a stride of a transposed result": lambda y: y.t().contiguous().stride(0),
    "all strides": lambda y: sum(y.t().contiguous().stride()),
    "the number of elements": lambda y: y.numel(),
    "half of the elements": lambda y: y.numel() // 2,
    "elements as a new size": lambda y: y.new_ones(y.numel()).sum(),
    "strides as an argument": lambda y: y.t().contiguous().as_strided(y.shape, (1, y.shape[0])) * 1,
    "the offset of a part": lambda y: y[1:].storage_offset() + y[:, 2:].storage_offset(),
    "the size of the memory": lambda y: y.untyped_storage().nbytes(),
    "contiguity": lambda y: 2 if y.t().is_contiguous() else 3,
    "contiguity of a copy": lambda y: 2 if y.t().contiguous().is_contiguous() else 3,
    "a branch on the elements": lambda y: 2 if y.numel() > 12 else 3,
    "a branch on a stride": lambda y: 2 if y.t().contiguous().stride(0) > 2 else 3,
    "two results in one number": lambda y: (y * 2).numel() + (y * 2).t().contiguous().stride(0),
}


@pytest.mark.slow
@pytest.mark.parametrize("target", ["cpu", "2xH100"])
@pytest.mark.parametrize("read", LAYOUTS.values(), ids=LAYOUTS)
def test_the_layout_of_a_repeated_result(read, target):
    check_outcome(Repeats(grown(read)), (X,), dynamic=({0: AUTO},), target=target)


@pytest.mark.parametrize("step", CONSTANTS.values(), ids=CONSTANTS)
def test_constants_differ_by_type_and_bits(step):
    check(Repeats(step), (X,))


@pytest.mark.parametrize("step", ALIASES.values(), ids=ALIASES)
def test_tensors_that_share_memory(step):
    check_outcome(Repeats(step), (X,))


@pytest.mark.parametrize("mode", MODES)
def test_modes_around_some_of_the_calls(mode):
    inner = attends if mode == "math attention" else computes

    check_outcome(Repeats(in_some(MODES[mode], inner)), (X,))


@pytest.mark.parametrize(
    "step",
    [sizes, checks_late, branches_late, begins_late, *slow(reshapes, counts_rows, masks)],
    ids=lambda s: s.__name__,
)
def test_symbolic_sizes(step):
    """Two dimensions with the same example size, and facts about them that the trace learns late."""
    shapes = {"x": {0: AUTO}, "more_0": {0: AUTO}}

    check_outcome(Repeats(step), (X, torch.ones(4, 6)), dynamic=shapes)


class Kernels:
    """Kernels of operators of `aten` that are registered until the next trace."""

    def __init__(self):
        self.library = None

    def register(self, name, kernel, key):
        self.library = self.library or torch.library.Library("aten", "IMPL")
        self.library.impl(name, kernel, key, allow_override=True)

    def clear(self):
        if self.library is not None:
            self.library._destroy()
        self.library = None


@pytest.fixture
def kernels():
    made = Kernels()
    yield made
    made.clear()


def shorter(x, y):
    return x.new_empty(x.shape[0], y.shape[1] - 1)


def test_a_kernel_that_the_model_registers_while_it_is_traced(kernels):
    def step(model, x, at):
        if at == 5:
            kernels.register("mm", shorter, "AutogradCPU")
        return torch.mm(x[:, :6], model.weight) if x.shape[1] == 6 else x

    check(Repeats(step), (X,), prepare=kernels.clear)


def test_an_operator_with_a_kernel_of_the_model_is_not_answered(kernels, memos):
    def hypot(x, y):  # Torch keeps the first kernel that it finds for a device, so this one may not run.
        return x.new_empty(x.shape)

    kernels.register("hypot", hypot, "AutogradCPU")

    both_ways(Repeats(lambda model, x, at: torch.hypot(x, x)), (X,))

    assert (memos[0].answered, memos[0].computed) == (0, 0)


def test_a_fake_kernel_that_is_replaced_between_two_calls(monkeypatch):
    def step(model, x, at):
        if at == 5:
            monkeypatch.setitem(torch.ops.aten.mm.default.py_kernels, torch._C.DispatchKey.Meta, shorter)
        return torch.mm(x, model.weight) if x.shape[1] == 6 else x

    check(Repeats(step), (X,), prepare=monkeypatch.undo)


def test_an_operator_of_the_model_whose_fake_kernel_has_state():
    with torch.library._scoped_library("memo_attacks", "FRAGMENT") as made:
        made.define("grow(Tensor x) -> Tensor")
        sizes = []

        def grow(x):
            sizes.append(len(sizes))
            return x.new_empty(4, 6 + (len(sizes) == 6))

        made.impl("grow", grow, "Meta")

        def step(model, x, at):
            return x + torch.ops.memo_attacks.grow(x)[:, -1:]

        check(Repeats(step), (X,), prepare=sizes.clear)


def test_a_python_function_of_torch_that_the_model_replaces(monkeypatch):
    def step(model, x, at):
        if at == 5:
            monkeypatch.setattr(nn.functional, "softplus", torch.relu)
        return nn.functional.softplus(x)

    check(Repeats(step), (X,), prepare=monkeypatch.undo)


def test_the_current_device_decides_where_a_tensor_is():
    def step(model, x, at):
        with torch.cuda.device(1 if at in (5, 6) else 0):
            return x + torch.ones(6, device="cuda").to(x.device)

    check_outcome(Repeats(step), (X,), target="2xH100")


def attended(x):
    y = x.expand(1, 2, -1, -1).half()
    return nn.functional.scaled_dot_product_attention(y, y, y)[0, 0].to(x.dtype)


ON_TWO_DEVICES = {
    "moves": lambda x, at: x.to(f"cuda:{at % 2}").relu() + 1,
    "new tensors": lambda x, at: x + torch.ones(6, device=f"cuda:{at % 2}").to(x.device),
    "several": lambda x, at: torch.add(*(x.to(f"cuda:{(at + i) % 2}") * 2 for i in (0, 2)), out=None),
    "an input on each": lambda x, at: x + x.to(f"cuda:{at % 2}").sum(-1, keepdim=True).cpu().to(x.device),
    "composites": lambda x, at: nn.functional.linear(
        x.to(f"cuda:{at % 2}"), torch.ones(6, 6).to(f"cuda:{at % 2}")
    ),
    "attention": lambda x, at: attended(x.to(f"cuda:{at % 2}")),
    "the wrong device": lambda x, at: x.to("cuda:1") + x.to(f"cuda:{int(at < 6)}"),
}


@pytest.mark.slow
@pytest.mark.parametrize("target", ["2xH100", "H100+T4"])
@pytest.mark.parametrize("step", ON_TWO_DEVICES.values(), ids=ON_TWO_DEVICES)
def test_a_device_answers_only_for_one_that_is_like_it(step, target):
    model = Repeats(lambda model, x, at: step(x, at))

    check_outcome(model, (X,), dynamic=({0: AUTO},), target=target)


def test_vmap_around_some_of_the_calls():
    def step(model, x, at):
        return torch.vmap(torch.relu)(x) if at in (5, 6) else torch.relu(x)

    check(Repeats(step), (X,))


def test_gradients_in_forward_are_those_of_a_trace_without_memo():
    def step(model, x, at):
        y = nn.functional.linear(x, model.weight)
        (found,) = torch.autograd.grad(y.sum(), model.weight)
        return x + found[:4]

    check_outcome(Repeats(step, count=3), (X,))


def test_a_name_of_a_gradient_function_is_that_of_the_operator():
    def step(model, x, at):
        y = nn.functional.linear(x, model.weight)
        return y * len(type(y.grad_fn).__name__)

    check(Repeats(step), (X,))


def test_a_literal_that_is_written_to():
    def step(model, x, at):
        held = torch.tensor([1.0, 2.0, 3.0, 4.0, 5.0, 6.0])
        held.add_(1)
        return x + held * held[0]

    check(Repeats(step), (X,))


@pytest.fixture
def kept_rows():
    """An operator that returns as many rows as there are positive values."""
    with torch.library._scoped_library("memo_attack_rows", "DEF") as library:
        library.define("kept(Tensor x) -> Tensor")
        library.impl("kept", lambda x: torch.nonzero(x > 0)[:, 0], "CPU")

        @torch.library.register_fake("memo_attack_rows::kept", lib=library)
        def _(x):
            return x.new_empty(torch.library.get_ctx().new_dynamic_size(), dtype=torch.int64)

        yield torch.ops.memo_attack_rows.kept


class Numbered(nn.Module):
    """torch's C++ code copies the result of `full_like` if Python holds it."""

    def __init__(self, kept):
        super().__init__()
        self.kept = kept

    def forward(self, x):
        rows = x[self.kept(x)[:6]][:, None].repeat(1, 4)
        return torch.cat([torch.full_like(rows[:, :1], 7.0), rows], dim=1)


def check_any_number_of_rows(program, model):
    for x in (torch.ones(8), -torch.ones(8), torch.tensor([1.0] + [-1.0] * 7), torch.arange(8.0) - 4):
        assert torch.equal(program.module()(x), model(x))


def test_a_result_with_an_unknown_number_of_rows(kept_rows):
    model = Numbered(kept_rows)

    program = capture(model, (torch.ones(8),)).program

    check_any_number_of_rows(program, model)


def test_a_result_that_something_holds(kept_rows, monkeypatch):
    held = []
    recorded = OperatorMemo._recorded
    monkeypatch.setattr(OperatorMemo, "_recorded", lambda *args: held.append(recorded(*args)) or held[-1])

    program = fe.export(lambda: (Numbered(kept_rows), (torch.ones(8),)))

    assert held
    check_any_number_of_rows(program, Numbered(kept_rows))


def test_threads_have_memos_of_their_own():
    found, model = {}, Repeats(lambda model, x, at: torch.relu(x @ model.weight) + at % 2)

    def run(at):
        with emulate("cpu"):
            found[at] = capture(model, (torch.ones(4 + at, 6),)).program

    threads = [threading.Thread(target=run, args=(at,)) for at in range(3)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()

    for at in range(3):
        run(3 + at)
        alone = both_ways(model, (torch.ones(4 + at, 6),))[1].program
        assert first_difference(found[at], alone) is None
