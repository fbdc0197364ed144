"""Record the allocations and frees of a training step on fake tensors, using torch's memory tracker.

`MemTracker` tracks when a tensor's memory is allocated and freed, and what it is used for, but only stores
sums. This subclass records every update, with its order, location and size. It handles four cases
differently, because `MemTracker` does not cover them or because fake and real tensors behave differently:

- Memory that an optimizer allocates and frees within a step is temporary, not optimizer state.
- The autograd engine adds two gradients in place if nothing else references one of them. For fake tensors,
  it creates a third tensor, which is removed from the record.
- No tensor hooks are used. The hooks of `ModTracker` keep gradients alive until all inputs of a module have
  their gradients, and cannot be registered on frozen parameters.
- A backward operator belongs to the module of the forward operator that created its autograd node.

Seen on torch 2.13.

Source: `torch/distributed/_tools/mem_tracker.py:MemTracker`;
`torch/csrc/autograd/input_buffer.cpp:accumulate`.
"""

from __future__ import annotations

import functools
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

from .operator_memory import Workspace

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
        file, line, function: Innermost frame of user code. A backward operator has the frame of the forward
            operator that created its autograd node. "", 0 and "" if there is no such frame.
    """

    operator: str  # For example `aten.mm.default`.
    phase: Phase  # Phase of the step. Recomputation of a checkpointed module counts as backward.
    module_path: str = ""  # Path of the innermost module running forward or backward; "" for the root.
    file: str = ""
    line: int = 0
    function: str = ""


@dataclass(frozen=True, slots=True)
class TrainingMemory:
    """Memory of a tensor and its views, or workspace of a kernel.

    Args:
        purpose: What the memory was last used for. It applies to the whole lifetime of the memory: the memory
            of a gradient has the purpose `gradient` from its allocation on.
        owner: Name of the parameter or buffer that the memory stores, or whose gradient or optimizer state it
            stores; otherwise "".
    """

    purpose: Purpose
    device: str  # For example `cuda:0`.
    bytes: int  # Size before rounding by an allocator.
    shape: tuple[int, ...] | None  # Shape of the first tensor that used it; None for a workspace.
    dtype: torch.dtype | None  # Dtype of that tensor; None for a workspace.
    operator: int  # Index of the operator that allocated it; -1 if it existed before.
    owner: str = ""


@dataclass(frozen=True, slots=True)
class TrainingRecord:
    """Allocations and frees of a training run.

    Args:
        memory: First the memory that exists from the start, then the rest in allocation order.
        events: Pairs of an operator's index and `k` if memory k is allocated, or `~k` if memory k is freed.
    """

    memory: tuple[TrainingMemory, ...]
    held: int  # Number of entries of `memory` that exist from start to end: weights and inputs.
    events: tuple[tuple[int, int], ...]
    operators: tuple[TrainingOperator, ...]  # In execution order.
    unknown: tuple[int, ...] = ()  # Indices of the operators whose workspace is unknown.


class TrainingTracker(MemTracker):
    """Record a training run on fake tensors, inside the context of `record()`. Then call `finished()`.

    Args:
        inputs: Tensors that the caller keeps alive during the run.
        workspace: Called after each operator. Returns the workspaces of its kernel.
        is_user_code: Called once per file. Returns whether the file belongs to the model's author.
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
        self._is_user_code = functools.cache(is_user_code)
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
        """Enter a context that records every operator on fake tensors. Enter it inside the fake mode."""
        stock = warnings.formatwarning  # torch replaces it if a module calls itself.
        try:
            with self:
                yield
        finally:
            warnings.formatwarning = stock

    def note_gradients(self) -> None:
        """Set the purpose of the memory of the parameters' current gradients to `gradient`."""
        self._settle_sum()
        for parameter in self._module.parameters():
            if parameter.grad is not None:
                self._known(parameter.grad, _MemRefType.GRAD, self._names[id(parameter)])

    def finished(self) -> TrainingRecord:
        """Return the record."""
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
            self._tensor = None  # A reference to a gradient would keep torch from reusing its memory.

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
        """Record an update that `MemTracker` would add to its sums."""
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
        else:  # Resized: the tensor gets new memory.
            self._events.append((len(self._operators) - 1, ~index))
            self._indices[winfo] = len(self._memory)
            self._take(replace(self._memory[index], bytes=winfo.size, operator=len(self._operators) - 1))

    def _take(self, memory: TrainingMemory) -> None:
        self._events.append((len(self._operators) - 1, len(self._memory)))
        self._memory.append(memory)

    def _update_peak_stats(self, peak_state: Any) -> None:
        """Do not compute sums, because the peak is computed from the record."""

    def _pre_fw_hook(self, module: nn.Module, inputs: Any) -> None:
        """Do not compute sums per module."""

    def _post_fw_hook(self, module: nn.Module, inputs: Any, outputs: Any) -> None:
        """Do not compute sums per module."""

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
        # The first operator after which a sequence number is current created that autograd node. Later
        # operators may create no nodes.
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
        """Return whether the autograd engine, not Python code, called the operator to add two gradients."""
        if func is not torch.ops.aten.add.Tensor or not self._mod_tracker.is_bw or torch.is_grad_enabled():
            return False
        frame: FrameType | None = sys._getframe(2)
        while frame is not None and frame.f_code.co_filename.endswith(_BETWEEN):
            frame = frame.f_back
        return frame is not None and frame.f_code.co_name == _ENGINE

    def _settle_sum(self) -> None:
        """Record the engine's last addition of two gradients as in-place.

        The sum then uses the memory of the gradient that was freed.
        """
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
    """Return a `ModTracker` that tracks running modules but registers no tensor hooks."""
    tracker: Any = ModTracker()
    before, after = tracker._fw_pre_hook, tracker._fw_post_hook

    def enter(module: nn.Module, inputs: Any) -> None:
        before(module, ())
        tracker._post_bw_callbacks_to_enqueue.clear()

    tracker._fw_pre_hook = enter
    tracker._fw_post_hook = lambda module, inputs, outputs: after(module, (), ())
    return tracker


def _memory_of(winfo: Any, tensor: torch.Tensor | None, operator: int, owner: str) -> TrainingMemory:
    shape = None if tensor is None else tuple(int(size) for size in tensor.shape)
    dtype = None if tensor is None else tensor.dtype
    purpose = _PURPOSES[winfo.reftype]
    return TrainingMemory(purpose, str(winfo.device), int(winfo.size), shape, dtype, operator, owner)


def optimizer_is_foreach(parameters: Iterable[torch.Tensor]) -> bool:
    """Return whether torch's optimizers use the foreach implementation for these parameters by default.

    torch checks the class of the parameters, which differs for fake parameters. The result of this function
    applies to real parameters.

    Source: `torch/optim/optimizer.py:_default_to_fused_or_foreach`.
    """
    from torch.utils._foreach_utils import _get_foreach_kernels_supported_devices

    from fakexport._torch.emulation.wrapper_subclasses import is_wrapper

    supported = _get_foreach_kernels_supported_devices()
    return all(p.device.type in supported and not is_wrapper(p) for p in parameters)
