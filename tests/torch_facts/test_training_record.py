"""What `training_record` relies on: torch's memory tracker, and what fakes do otherwise."""

from __future__ import annotations

import warnings
from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import nn
from torch._subclasses.fake_tensor import FakeTensorMode
from torch.distributed._tools.mem_tracker import MemTracker, _MemRefType, _UpdateType
from torch.utils._python_dispatch import TorchDispatchMode

from fakexport._torch.costs.training_record import TrainingRecord, TrainingTracker, optimizer_is_foreach
from fakexport.emulation.devices import emulate


class _Seen(TorchDispatchMode):
    """Notes operators, the number of their autograd node, and whether one is evaluated."""

    def __init__(self) -> None:
        super().__init__()
        self.calls: list[tuple[str, int, int | None]] = []

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        node = torch._C._current_autograd_node()
        number = torch._C._autograd._get_sequence_nr() - 1
        self.calls.append((str(func), number, None if node is None else node._sequence_nr()))
        return func(*args, **(kwargs or {}))


def _recorded(module: nn.Module, run: Callable[[], None], mode: FakeTensorMode, *held: Any) -> TrainingRecord:
    tracker = TrainingTracker(module, held, lambda *call: (), lambda file: file == __file__)
    with mode, tracker.record():
        run()
        tracker.note_gradients()
    return tracker.finished()


def _linear(size: int = 8) -> tuple[FakeTensorMode, nn.Module, torch.Tensor]:
    mode = FakeTensorMode()
    with mode:
        return mode, nn.Linear(size, size), torch.empty(2, size)


def test_the_tracker_updates_a_sum_for_each_storage_that_comes_or_goes() -> None:
    updates: list[tuple[Any, int]] = []

    class Noted(MemTracker):
        def _update_snap(self, u_type: Any, winfo: Any, *others: Any, **more: Any) -> None:
            updates.append((u_type, winfo.size * winfo.element_size))
            super()._update_snap(u_type, winfo, *others, **more)

    mode = FakeTensorMode()
    with mode, Noted():
        tensor = torch.empty(3)
        del tensor

    assert updates == [(_UpdateType.ADD, 12), (_UpdateType.DEL, 12)]


def test_the_tracker_takes_what_an_optimizer_computes_with_for_its_state() -> None:
    mode, module, tensor = _linear()
    with mode:
        optimizer = torch.optim.AdamW(module.parameters())
    tracker = MemTracker()
    with mode, tracker:
        module(tensor).sum().backward()
        optimizer.step()
    held = 2 * sum(p.numel() * p.itemsize for p in module.parameters()) + 8

    (peak,) = tracker.get_tracker_snapshot("peak").values()
    assert peak[_MemRefType.OPT] > held


def test_the_tracker_refuses_frozen_parameters() -> None:
    mode, module, tensor = _linear()
    module.requires_grad_(False)

    with warnings.catch_warnings(action="ignore"), mode, MemTracker():  # noqa: SIM117
        with pytest.raises(RuntimeError, match="doesn't require gradient"):
            module(tensor)


def test_a_node_has_the_number_of_the_operator_that_made_it() -> None:
    tensor = torch.ones(3, requires_grad=True)
    with _Seen() as seen:
        tensor.sin().sum().backward()

    numbers = {name: number for name, number, _ in seen.calls}
    nodes = {name: node for name, _, node in seen.calls}
    assert nodes["aten.cos.default"] == numbers["aten.sin.default"]
    assert nodes["aten.sin.default"] is None


def test_a_sum_of_gradients_takes_no_memory_of_its_own_although_a_mode_sees_it() -> None:
    leaf = torch.ones(3, requires_grad=True)
    with _Seen() as seen:
        (leaf.sin() + leaf.exp()).sum().backward()
    assert [name for name, *_ in seen.calls].count("aten.add.Tensor") == 2

    mode, module, tensor = _linear()

    def run() -> None:
        hidden = module(tensor)
        (hidden.sin() + hidden.exp()).sum().backward()

    record = _recorded(module, run, mode, tensor)

    taken = [record.operators[step] for step, event in record.events if event >= 0]
    assert [(one.operator, one.phase) for one in taken if one.operator == "aten.add.Tensor"] == [
        ("aten.add.Tensor", "forward")
    ]


def test_nothing_that_is_recorded_keeps_a_gradient_from_becoming_that_of_its_weight() -> None:
    mode, module, tensor = _linear()

    record = _recorded(module, lambda: module(tensor).sum().backward(), mode, tensor)

    assert {operator.module_path for operator in record.operators} == {""}
    copies = [one.operator for one in record.operators if "copy" in one.operator or "clone" in one.operator]
    assert copies == []
    assert sum(one.bytes for one in record.memory if one.purpose == "gradient") == (64 + 8) * 4


def test_torch_updates_parameters_together_where_the_device_has_kernels_for_it() -> None:
    parameters = [nn.Parameter(torch.ones(2))]
    optimizer = torch.optim.AdamW(parameters)
    calls: list[str] = []
    with _Seen() as seen:
        parameters[0].sum().backward()
        optimizer.step()
    calls = [name for name, *_ in seen.calls if "_foreach_" in name]

    assert (optimizer_is_foreach(parameters), calls) == (False, [])
    with emulate("H100"), FakeTensorMode():
        assert optimizer_is_foreach([torch.empty(2, device="cuda")])


def test_the_text_of_warnings_is_made_by_whoever_made_it_before() -> None:
    before = warnings.formatwarning
    mode, module, tensor = _linear()

    class Twice(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.inner = module

        def forward(self, x: torch.Tensor, again: bool = True) -> torch.Tensor:
            return self(self.inner(x), False) if again else self.inner(x)

    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        _recorded(Twice(), lambda: None, mode)
        with mode:
            _recorded(own := Twice(), lambda: own(tensor).sum().backward(), mode, tensor)

    assert warnings.formatwarning is before
