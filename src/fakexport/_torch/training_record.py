"""What a training step on fakes takes and gives back, in order, as torch's own memory tracker sees it.

`MemTracker` knows when the memory of a tensor comes and goes and what it is for. It keeps sums; here each of
its updates is recorded, so that the order, the place and the sizes are known as well. Four things differ from
it, because they differ between a run on fakes and a real one, or are not its subject:

- What an optimizer takes and gives back within a step is a temporary, not its state.
- The autograd engine adds gradients in place where nothing else holds one of them. For fakes it makes a third
  tensor, which is dropped from the record.
- No hooks on tensors: those of `ModTracker` hold gradients until all inputs of a module have theirs, and
  parameters that are frozen take none.
- The module of a backward operator is that of the forward operator that made its node.

Seen on torch 2.13.

Source: `torch/distributed/_tools/mem_tracker.py:MemTracker`;
`torch/csrc/autograd/input_buffer.cpp:accumulate`.
"""

from __future__ import annotations

import sys
import warnings
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, replace
from types import FrameType
from typing import Any, Literal, TypeAlias

import torch
from torch import nn
from torch.distributed._tools.mem_tracker import MemTracker, _MemRefType, _UpdateType
from torch.distributed._tools.mod_tracker import ModTracker

from .operator_memory import Workspace, tensors_in

Phase: TypeAlias = Literal["forward", "backward", "optimizer"]
Purpose: TypeAlias = Literal[
    "weight", "gradient", "optimizer", "activation", "temporary", "input"
]  # fmt: skip

_PURPOSES: Mapping[Any, Purpose] = {
    _MemRefType.PARAM: "weight",
    _MemRefType.BUFFER: "weight",
    _MemRefType.GRAD: "gradient",
    _MemRefType.OPT: "optimizer",
    _MemRefType.ACT: "activation",
    _MemRefType.TEMP: "temporary",
    _MemRefType.OTH: "input",
}
_ENGINE = "_engine_run_backward"
_BETWEEN = ("torch/_dynamo/eval_frame.py", "torch/_compile.py")


@dataclass(frozen=True, slots=True)
class TrainingOperator:
    """One operator of a training step.

    Args:
        operator: `aten.mm.default`.
        phase: What it is part of; the recomputation of a checkpointed module is part of the backward pass.
        module_path: Path of the innermost module that runs, or whose backward pass it is; "" for the root.
        file, line, function: The innermost user frame, or that of the forward operator; "", 0, "" if none.
    """

    operator: str
    phase: Phase
    module_path: str = ""
    file: str = ""
    line: int = 0
    function: str = ""


@dataclass(frozen=True, slots=True)
class TrainingMemory:
    """The memory of a tensor and its views, or what a kernel takes for itself.

    Args:
        purpose: What it is for in the end: a gradient is one from the moment it is computed.
        device: `cuda:0`.
        bytes: Before any allocator rounds it.
        shape: Shape of the first tensor in it; None for a kernel's own.
        dtype: Dtype of that tensor; None for a kernel's own.
        operator: Index of the operator that took it; -1 for what was there before.
        owner: Name of the parameter or buffer that it is, or is the gradient or state of; else "".
    """

    purpose: Purpose
    device: str
    bytes: int
    shape: tuple[int, ...] | None
    dtype: torch.dtype | None
    operator: int
    owner: str = ""


@dataclass(frozen=True, slots=True)
class TrainingRecord:
    """What a training run does to memory.

    Args:
        memory: What is there from the start first, then the rest in the order in which it is taken.
        held: How many are there from the start to the end: weights and inputs.
        events: Index of an operator, and `k` where memory k is taken or `~k` where it is given back.
        operators: In the order of execution.
        unknown: Indices of the operators whose kernels take memory for themselves that is not known.
    """

    memory: tuple[TrainingMemory, ...]
    held: int
    events: tuple[tuple[int, int], ...]
    operators: tuple[TrainingOperator, ...]
    unknown: tuple[int, ...] = ()


class TrainingTracker(MemTracker):
    """Records a training run on fakes: `record()` is a context for it, `finished()` returns what was seen.

    Args:
        module: Of fakes.
        inputs: What the caller holds while the run lasts.
        workspace: Asked after each operator for what its kernel takes for itself.
        is_user_code: Whether a file was written by the author of the model; asked once per file.
    """

    def __init__(
        self,
        module: nn.Module,
        inputs: Iterable[torch.Tensor],
        workspace: Workspace,
        is_user_code: Callable[[str], bool],
    ) -> None:
        super().__init__()
        self._mod_tracker: Any = _modules()
        self._module, self._workspace = module, workspace
        self._is_user_code = _Remembered(is_user_code)
        self._memory: list[TrainingMemory] = []
        self._events: list[tuple[int, int]] = []
        self._operators: list[TrainingOperator] = []
        self._unknown: list[int] = []
        self._indices: dict[Any, int] = {}
        self._places: dict[int, TrainingOperator] = {}
        self._tensor: torch.Tensor | None = None
        self._owner = ""
        self._sum: tuple[int, int, Any] | None = None
        self._added: Any = None
        self._names = {id(p): name for name, p in module.named_parameters(remove_duplicate=False)}
        for name, parameter in module.named_parameters():
            self._known(parameter, _MemRefType.PARAM, name)
        for name, buffer in module.named_buffers():
            self._known(buffer, _MemRefType.BUFFER, name)
        for tensor in inputs:
            self._known(tensor, _MemRefType.OTH, "")
        self._held = len(self._memory)
        self._events.clear()

    @contextmanager
    def record(self) -> Iterator[None]:
        """Enter a context in which every operator on fakes is recorded; inside of their mode."""
        stock = warnings.formatwarning  # Replaced by torch where a module calls itself.
        try:
            with self:
                yield
        finally:
            warnings.formatwarning = stock

    def note_gradients(self) -> None:
        """Say of the gradients that there are now what they are."""
        self._settle_sum()
        for parameter in self._module.parameters():
            if parameter.grad is not None:
                self._known(parameter.grad, _MemRefType.GRAD, self._names[id(parameter)])

    def finished(self) -> TrainingRecord:
        """Return what was recorded."""
        self._settle_sum()
        return TrainingRecord(
            *(tuple(self._memory), self._held, tuple(self._events), tuple(self._operators)),
            tuple(self._unknown),
        )

    def _known(self, tensor: torch.Tensor, purpose: Any, owner: str) -> None:
        self._owner = owner
        self._update_and_maybe_create_winfos(tensor, purpose)
        self._owner = ""

    def _update_and_maybe_create_winfos(
        self, t: torch.Tensor, reftype: Any, update_existing: bool = False
    ) -> Any:
        self._tensor = t
        try:
            return super()._update_and_maybe_create_winfos(t, reftype, update_existing)
        finally:
            self._tensor = None  # Whoever holds a gradient keeps torch from using its memory again.

    def _track(self, reftype: Any, t: torch.Tensor) -> None:
        self._tensor = t
        if reftype is _MemRefType.OPT:
            reftype = _MemRefType.TEMP
        elif self._mod_tracker.is_bw:
            reftype = _MemRefType.ACT if torch.is_grad_enabled() else _MemRefType.TEMP
        super()._track(reftype, t)
        self._tensor = None

    def _track_optimizer_states(self, reftype: Any, optimizer: torch.optim.Optimizer) -> None:
        for parameter, states in optimizer.state.items():
            for value in states.values():
                if isinstance(value, torch.Tensor):
                    self._known(value, reftype, self._names.get(id(parameter), ""))

    def _update_snap(
        self, u_type: Any, winfo: Any, old_mem_consumed: int | None = None, old_reftype: Any = None
    ) -> None:
        """Record what the tracker would add to its sums."""
        if u_type is _UpdateType.ADD:
            self._added = winfo
            self._indices[winfo] = len(self._memory)
            self._take(_memory_of(winfo, self._tensor, len(self._operators) - 1, self._owner))
            return
        index = self._indices[winfo]
        if u_type is _UpdateType.DEL:
            self._events.append((len(self._operators) - 1, ~index))
        elif u_type is _UpdateType.REF:
            owner = self._owner or self._memory[index].owner
            self._memory[index] = replace(self._memory[index], purpose=_PURPOSES[winfo.reftype], owner=owner)
        else:  # Resized: other memory, which the same tensor has from now on.
            self._events.append((len(self._operators) - 1, ~index))
            self._indices[winfo] = len(self._memory)
            self._take(replace(self._memory[index], bytes=winfo.size, operator=len(self._operators) - 1))

    def _take(self, memory: TrainingMemory) -> None:
        self._events.append((len(self._operators) - 1, len(self._memory)))
        self._memory.append(memory)

    def _update_peak_stats(self, peak_state: Any) -> None:
        """Leave the sums: the peak is found in the record."""

    def _pre_fw_hook(self, module: nn.Module, inputs: Any) -> None:
        """Leave the sums per module."""

    def _post_fw_hook(self, module: nn.Module, inputs: Any, outputs: Any) -> None:
        """Leave the sums per module."""

    def __torch_dispatch__(
        self, func: Any, types: Any, args: Sequence[Any] = (), kwargs: Mapping[str, Any] | None = None
    ) -> Any:
        self._settle_sum()
        self._operators.append(self._place(func))
        before = len(self._memory)
        run: Any = super().__torch_dispatch__
        result = run(func, types, args, kwargs or {})
        if len(self._memory) > before and self._is_engines_sum(func):
            self._sum = len(self._events) - 1, before, self._added
        for device, size in self._workspace(func, args, kwargs or {}, result):
            if size is None:
                self._unknown.append(len(self._operators) - 1)
                continue
            index = len(self._memory)
            self._take(TrainingMemory("temporary", device, int(size), None, None, len(self._operators) - 1))
            self._events.append((len(self._operators) - 1, ~index))
        return result

    def _place(self, func: Any) -> TrainingOperator:
        name = str(func)
        if self._in_opt:
            return TrainingOperator(name, "optimizer")
        is_backward = self._mod_tracker.is_bw
        if is_backward and not torch.is_grad_enabled():
            node = torch._C._current_autograd_node()
            forward = None if node is None else self._places.get(node._sequence_nr())
            if forward is None:
                return TrainingOperator(name, "backward")
            return replace(forward, operator=name, phase="backward")
        phase: Phase = "backward" if is_backward else "forward"
        place = TrainingOperator(name, phase, self._module_path(), *self._line())
        # The first operator to see the number of a node has made it; those after it may make none.
        self._places.setdefault(torch._C._autograd._get_sequence_nr() - 1, place)
        return place

    def _module_path(self) -> str:
        innermost: str = max(self._mod_tracker.parents, key=lambda path: (path != "Global", path.count(".")))
        return innermost.partition(".")[2]

    def _line(self) -> tuple[str, int, str]:
        frame: FrameType | None = sys._getframe(1)
        while frame is not None:
            code = frame.f_code
            if self._is_user_code(code.co_filename):
                return code.co_filename, frame.f_lineno, code.co_name
            frame = frame.f_back
        return "", 0, ""

    def _is_engines_sum(self, func: Any) -> bool:
        """Return whether the autograd engine adds two gradients: nothing in Python calls the operator."""
        if func is not torch.ops.aten.add.Tensor or not self._mod_tracker.is_bw or torch.is_grad_enabled():
            return False
        frame: FrameType | None = sys._getframe(2)
        while frame is not None and frame.f_code.co_filename.endswith(_BETWEEN):
            frame = frame.f_back
        return frame is not None and frame.f_code.co_name == _ENGINE

    def _settle_sum(self) -> None:
        """Let the last sum of gradients be in the memory of the one of them that was given back for it."""
        if self._sum is None:
            return
        position, index, winfo = self._sum
        self._sum = None
        size = self._memory[index].bytes
        for later in range(position + 1, len(self._events)):
            dead = ~self._events[later][1]
            if dead >= self._held and self._memory[dead].bytes == size:
                del self._events[later], self._events[position]
                self._indices[winfo] = dead
                return


def _modules() -> Any:
    """Return what knows the modules whose forward runs, and puts no hooks on their tensors."""
    tracker: Any = ModTracker()
    before, after = tracker._fw_pre_hook, tracker._fw_post_hook

    def enter(module: nn.Module, inputs: Any) -> None:
        before(module, ())
        tracker._post_bw_callbacks_to_enqueue.clear()

    tracker._fw_pre_hook = enter
    tracker._fw_post_hook = lambda module, inputs, outputs: after(module, (), ())
    return tracker


class _Remembered(dict[str, bool]):
    def __init__(self, answer: Callable[[str], bool]) -> None:
        self._answer = answer

    def __missing__(self, key: str) -> bool:
        self[key] = found = self._answer(key)
        return found

    def __call__(self, key: str) -> bool:
        return self[key]


def _memory_of(winfo: Any, tensor: torch.Tensor | None, operator: int, owner: str) -> TrainingMemory:
    shape = None if tensor is None else tuple(int(size) for size in tensor.shape)
    dtype = None if tensor is None else tensor.dtype
    purpose = _PURPOSES[winfo.reftype]
    return TrainingMemory(purpose, str(winfo.device), int(winfo.size), shape, dtype, operator, owner)


def optimizer_is_foreach(parameters: Iterable[torch.Tensor]) -> bool:
    """Return whether torch's optimizers update these parameters together by default, as real ones.

    They ask for the class, which is another one for fakes.

    Source: `torch/optim/optimizer.py:_default_to_fused_or_foreach`.
    """
    from torch.utils._foreach_utils import _get_foreach_kernels_supported_devices

    from .wrapper_subclasses import is_wrapper

    supported = _get_foreach_kernels_supported_devices()
    return all(p.device.type in supported and not is_wrapper(p) for p in parameters)


__all__ = [
    "Phase",
    "Purpose",
    "TrainingMemory",
    "TrainingOperator",
    "TrainingRecord",
    "TrainingTracker",
    "optimizer_is_foreach",
    "tensors_in",
]
