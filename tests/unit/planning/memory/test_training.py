"""Training on fakes holds what real training holds: to the byte, allocation by allocation."""

import functools
import warnings
from collections import Counter
from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import nn
from torch.nn import functional
from torch.utils.checkpoint import checkpoint

from fakexport.emulation.devices import emulate
from fakexport.emulation.fake import FakeModel, build
from fakexport.planning.memory import Liveness, sizes_at
from fakexport.planning.memory.training import OPTIMIZERS, Untrainable, loss_of, training_liveness
from tests.measured_memory import measured_changes, measured_training

ROWS, WIDTH = 32, 48
NUMBER_BYTES = 8  # Of the tensor that the CPU makes of a number, while AdamW divides by it.


class Plain(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.first, self.norm = nn.Linear(WIDTH, 2 * WIDTH), nn.LayerNorm(2 * WIDTH)
        self.second = nn.Linear(2 * WIDTH, WIDTH)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        hidden: torch.Tensor = self.second(functional.gelu(self.norm(self.first(x))))
        return hidden


class Branches(Plain):
    """A value that is used three times: its gradients are added up."""

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        hidden = self.first(x)
        return hidden.sin() * hidden.cos() + hidden.exp()


class Frozen(Plain):
    def __init__(self) -> None:
        super().__init__()
        self.first.requires_grad_(False)


class Tied(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.embed, self.head = nn.Embedding(256, WIDTH), nn.Linear(WIDTH, 256, bias=False)
        self.head.weight = self.embed.weight

    def forward(self, x: torch.Tensor) -> Any:
        return self.head(self.embed(x.long().abs() % 256))


class Unused(Plain):
    """A parameter without a gradient has no state either."""

    def __init__(self) -> None:
        super().__init__()
        self.other = nn.Linear(WIDTH, WIDTH)


class Checkpointed(Plain):
    def forward(self, x: torch.Tensor) -> torch.Tensor:
        hidden: torch.Tensor = checkpoint(super().forward, x, use_reentrant=False, preserve_rng_state=False)
        return hidden.sin()


class Scaled(torch.autograd.Function):
    """Adds gradients in Python, where torch makes a third tensor."""

    @staticmethod
    def forward(ctx: Any, x: torch.Tensor) -> torch.Tensor:  # type: ignore[override]
        ctx.save_for_backward(x)
        return x.sin()

    @staticmethod
    def backward(ctx: Any, gradient: torch.Tensor) -> torch.Tensor:  # type: ignore[override]
        (x,) = ctx.saved_tensors
        return gradient * x.cos() + gradient


class Custom(Plain):
    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return Scaled.apply(super().forward(x))  # type: ignore[no-any-return, no-untyped-call]


MODELS = (Plain, Branches, Frozen, Tied, Unused, Checkpointed, Custom)


def _inputs() -> tuple[torch.Tensor]:
    return (torch.ones(ROWS, WIDTH),)


def _trained(model: Callable[[], nn.Module], target: str = "cpu", **options: Any) -> Liveness:
    with emulate(target):
        built: FakeModel = build(lambda: (model(), _inputs()))
        return training_liveness(built, built.args, {}, **options)


def _measured(model: Callable[[], nn.Module], optimizer: Any) -> int:
    module, inputs = model(), _inputs()

    def step(own: torch.optim.Optimizer) -> None:
        own.zero_grad()
        loss_of(module(*inputs)).backward()
        own.step()

    trained = [parameter for parameter in module.parameters() if parameter.requires_grad]
    return measured_training(module, step, functools.partial(optimizer, trained))


@pytest.mark.parametrize("name", OPTIMIZERS)
@pytest.mark.parametrize("model", MODELS)
def test_training_holds_what_real_training_holds(model, name):
    predicted = sizes_at(_trained(model, optimizer=name), {}).peak("cpu").run_bytes

    assert 0 <= _measured(model, OPTIMIZERS[name]) - predicted <= NUMBER_BYTES


def test_mixed_precision_takes_what_a_real_run_takes():
    """But for the scratch of oneDNN's products in bfloat16, which no plan shows."""
    found = _trained(Plain, autocast=torch.bfloat16)
    predicted = Counter(found.storages[event].bytes for _, event in found.events if event >= 0)

    module, inputs = Plain(), _inputs()

    @torch.enable_grad()  # type: ignore[untyped-decorator]
    def steps() -> None:
        module.zero_grad()
        optimizer = torch.optim.AdamW(module.parameters())
        for _ in range(2):
            optimizer.zero_grad()
            with torch.autocast("cpu", dtype=torch.bfloat16):
                loss = loss_of(module(*inputs))
            loss.backward()
            optimizer.step()

    measured = Counter(size for size in measured_changes(steps) if size > 0)

    large = {size: count for size, count in predicted.items() if size > WIDTH * 4}
    assert {size: count - measured[size] for size, count in large.items() if count > measured[size]} == {}
    assert large[WIDTH * 2 * WIDTH * 2] == 2 * 4  # In each step two weights in bfloat16, and their gradients.


def test_an_autocast_around_the_call_is_not_that_of_the_model():
    with torch.autocast("cpu", dtype=torch.bfloat16), torch.no_grad():
        found = _trained(Plain)

    assert sizes_at(found, {}).peak("cpu").bytes == sizes_at(_trained(Plain), {}).peak("cpu").bytes


def test_a_gpu_updates_all_parameters_together():
    weights = sum(p.numel() * p.itemsize for p in Plain().parameters())
    found = sizes_at(_trained(Plain, "H100"), {})
    peak = max((held for _, held in found.fullest_by_step("cuda:0")), key=lambda held: held["temporary"])

    assert (peak["weight"], peak["gradient"], peak["optimizer"]) == (weights, weights, 2 * weights)
    assert peak["temporary"] == weights  # `_foreach_sqrt`; one parameter at a time would take two of it.


def test_parameters_in_bfloat16_have_gradients_and_states_in_bfloat16():
    with emulate("H100"):
        built = build(lambda: (Plain().bfloat16(), (torch.ones(ROWS, WIDTH).bfloat16(),)))
        found = training_liveness(built, built.args, {})

    kinds = {storage.kind: storage.dtype for storage in found.storages if storage.device == "cuda:0"}
    assert {kinds[kind] for kind in ("weight", "gradient", "optimizer")} == {"bfloat16"}


def test_the_place_of_a_backward_operator_is_that_of_the_forward_one():
    found = _trained(Plain)
    backward = [step for step in found.steps if step.name == "backward" and "layer_norm" in step.operator]

    assert {step.module_path for step in backward} == {"norm"}
    assert all(step.span is not None and step.span.path == __file__ for step in backward)


def test_the_backward_pass_of_a_convolution_is_named_as_not_modeled():
    with emulate("cpu"):
        built = build(lambda: (nn.Sequential(nn.Conv2d(3, 8, 3), nn.ReLU()), (torch.ones(2, 3, 12, 12),)))
        found = training_liveness(built, built.args, {}, optimizer="sgd")

    assert {operator for _, operator in found.unmodeled} == {"aten.convolution_backward.default"}
    assert {found.steps[step].name for step, _ in found.unmodeled} == {"backward"}


def test_a_backward_kernel_that_was_not_measured_is_named():
    class Attention(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.linear = nn.Linear(8, 8)

        def forward(self, x: torch.Tensor) -> torch.Tensor:
            return functional.scaled_dot_product_attention(self.linear(x), x, x)

    with emulate("cpu"):
        built = build(lambda: (Attention(), (torch.ones(1, 2, 16, 8),)))
        found = training_liveness(built, built.args, {}, optimizer="sgd")

    names = {operator for _, operator in found.unmodeled}
    assert names == {"aten._scaled_dot_product_flash_attention_for_cpu_backward.default"}


def test_an_operator_without_a_node_takes_no_place_of_another():
    class Aside(Plain):
        def forward(self, x: torch.Tensor) -> torch.Tensor:
            hidden = self.first(x)
            with torch.no_grad():
                self.second(hidden)
            return hidden.sin()

    backward = [step for step in _trained(Aside).steps if step.name == "backward" and "mm" in step.operator]

    assert {step.module_path for step in backward} == {"first"}


def test_a_model_without_parameters_to_train_is_refused():
    with pytest.raises(Untrainable, match="no parameter requires a gradient"):
        _trained(lambda: Plain().requires_grad_(False))


def test_a_loss_that_depends_on_no_parameter_is_refused():
    class Detached(Plain):
        def forward(self, x: torch.Tensor) -> torch.Tensor:
            return super().forward(x).detach()

    with pytest.raises(Untrainable, match="depends on its parameters"):
        _trained(Detached)


def test_nothing_of_a_run_is_left():
    resize, formats = torch.UntypedStorage.resize_, warnings.formatwarning
    with emulate("cpu"):
        built = build(lambda: (Plain(), _inputs()))
        training_liveness(built, built.args, {})

    assert torch.UntypedStorage.resize_ is resize
    assert warnings.formatwarning is formats
    assert all(parameter.grad is None for parameter in built.module.parameters())
