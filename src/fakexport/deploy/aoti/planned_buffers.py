"""What a program holds once AOTInductor has compiled it: the buffers that the compiler plans for itself."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass, replace

from torch.export import ExportedProgram

from fakexport._torch.inductor_buffers import BufferLine, PlannedWrapper, UnplannedGraph, planned_wrapper
from fakexport._torch.tracing_lock import one_at_a_time
from fakexport.diagnostics import Span
from fakexport.memory import Kind, Liveness, Size, Storage, is_cache, liveness, temporaries
from fakexport.program import (
    devices_of_program,
    module_path,
    operator_name,
    plain_name,
    source_span,
    unbound_names,
    user_outputs,
)

from ..artifact import DeployError
from ..composed_program import IN_PYTHON, composed
from .faults import failure_of
from .graph import example_arguments, graph_of
from .stand_ins import with_own_weights, with_stand_ins

LEFT_OUT = (
    "AOTInductor: what its own kernels take while they run, and copies of weights that libraries make",
    "AOTInductor: options other than torch's defaults, such as freezing and max_autotune",
)


@dataclass(frozen=True, slots=True)
class WrapperStep:
    """A line of the wrapper that takes memory, or calls a kernel: a buffer or kernel, and its first node."""

    name: str
    operator: str
    module_path: str = ""
    span: Span | None = None


@one_at_a_time
def planned_buffers(program: ExportedProgram) -> Liveness:
    """Return what a compiled program holds, as AOTInductor plans it for the CPU, with torch's defaults.

    Inductor lowers and schedules the program; nothing is compiled and no compiler is needed. Sizes that vary
    stay expressions.

    Args:
        program: On the CPU; not changed. Without weights it is planned as the code to which they are bound
            later; with weights as the code that has them, into which Inductor writes small constants.
    Raises:
        DeployError: it is not on the CPU, or branches on data. One line.
        CompileFailure: Inductor cannot lower it (FE803).
    """
    others = [device for device in devices_of_program(program) if device not in ("cpu", "meta")]
    if others:
        raise DeployError(why_unplanned(others[0]))
    held = liveness(program)
    has_weights = not unbound_names(program)
    lowered = composed(program, IN_PYTHON)
    prepared = with_own_weights(lowered) if has_weights else with_stand_ins(lowered)
    args, kwargs = example_arguments(program)
    try:
        wrapper = planned_wrapper(graph_of(prepared), args, kwargs, temporaries, has_weights=has_weights)
    except UnplannedGraph as error:
        raise DeployError(f"AOTInductor's buffers cannot be planned: {error}") from error
    except Exception as error:
        raise failure_of(error) from error
    return _Run(held).of(wrapper, [name for name, _ in user_outputs(program)])


def why_unplanned(device: str) -> str:
    """Return why the buffers are not planned for a device that is not the CPU."""
    return (
        f"AOTInductor's buffers are planned for the CPU: code for {device} is generated with Triton, and "
        "Inductor queries the GPU, which has to be in this machine"
    )


class _Run:
    """One call of the wrapper: each handle holds memory until it is reset, or to the end of the call.

    `held` is of the program: its weights and inputs are those of the compiled one.
    """

    def __init__(self, held: Liveness) -> None:
        self._held = held
        self._storages: list[Storage] = list(held.storages[: held.held])
        self._events: list[tuple[int, int]] = []
        self._steps: list[WrapperStep] = []
        self._handles: dict[str, int] = {}
        self._holders: Counter[int] = Counter()

    def of(self, wrapper: PlannedWrapper, names: Sequence[str]) -> Liveness:
        """Return what it takes and gives back; `names` are those of its outputs."""
        for line in wrapper.lines:
            self._read(line)
        returned = [self._handles.get(buffer) for buffer in wrapper.returned]
        caches = {
            index for index, name in zip(returned, names, strict=True) if index is not None and is_cache(name)
        }
        outputs = {index for index in returned if index is not None}
        for index in outputs:
            kind: Kind = "state" if index in caches else "output"
            self._storages[index] = replace(self._storages[index], kind=kind)
        self._events += [(len(self._steps) - 1, ~index) for index in {*self._handles.values()} - outputs]
        unread = (f"AOTInductor: {name}: only its results are counted" for name in wrapper.unread)
        return Liveness(
            storages=tuple(self._storages),
            held=self._held.held,
            events=tuple(self._events),
            steps=tuple(self._steps),
            state=tuple(sorted({*caches, *(index for index in self._held.state if index < self._held.held)})),
            left_out=(*LEFT_OUT, *unread),
        )

    def _read(self, line: BufferLine) -> None:
        match line.act:
            case "take":
                self._handles[line.name] = self._take(line)
                self._holders[self._handles[line.name]] = 1
            case "call":
                step = self._step(line)
                taken = [self._add(step, "temporary", device, size) for device, size in line.workspace]
                self._events += [(len(self._steps) - 1, ~index) for index in taken]
            case "free":
                self._free(line.name)
            case "alias" | "rename":
                index = self._handles.get(line.other)
                if index is not None:  # Not so for an input.
                    self._handles[line.name] = index
                    self._holders[index] += 1
                if line.act == "rename":
                    self._free(line.other)

    def _free(self, name: str) -> None:
        index = self._handles.pop(name, None)
        if index is not None:
            self._holders[index] -= 1
            if not self._holders[index]:
                self._events.append((len(self._steps) - 1, ~index))

    def _step(self, line: BufferLine) -> WrapperStep:
        step = WrapperStep(line.name, line.name)
        if (node := line.node) is not None:
            step = WrapperStep(line.name, operator_name(node), module_path(node), source_span(node))
        self._steps.append(step)
        return step

    def _take(self, line: BufferLine) -> int:
        dtype = "" if line.dtype is None else plain_name(line.dtype)
        return self._add(self._step(line), "activation", line.device, line.bytes, line.shape, dtype)

    def _add(
        self,
        step: WrapperStep,
        kind: Kind,
        device: str,
        size: Size,
        shape: tuple[Size, ...] | None = None,
        dtype: str = "",
    ) -> int:
        self._storages.append(Storage(step.name, kind, device, size, shape, dtype, step.operator, step))
        self._events.append((len(self._steps) - 1, len(self._storages) - 1))
        return len(self._storages) - 1
