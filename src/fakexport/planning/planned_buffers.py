"""Plan the memory of a program that AOTInductor compiles, from the buffers that the compiler plans."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from dataclasses import replace

from torch.export import ExportedProgram

from fakexport._torch.costs.inductor_buffers import (
    BufferLine,
    PlannedWrapper,
    UnplannedGraph,
    planned_wrapper,
)
from fakexport._torch.tracing_lock import one_at_a_time
from fakexport.deploy import IN_PYTHON, DeployError, composed
from fakexport.deploy.aoti import example_arguments, failure_of, graph_of, with_own_weights, with_stand_ins
from fakexport.exporting.program import (
    devices_of_program,
    module_path,
    operator_name,
    plain_name,
    source_span,
    unbound_names,
    user_outputs,
)
from fakexport.planning.memory import (
    Kind,
    Liveness,
    NamedStep,
    Size,
    Storage,
    is_cache,
    liveness,
    temporaries,
)

LEFT_OUT = (
    "AOTInductor: temporary memory of its generated kernels, and copies of weights that libraries make",
    "AOTInductor: options other than torch's defaults, such as freezing and max_autotune",
)


@one_at_a_time
def planned_buffers(program: ExportedProgram) -> Liveness:
    """Return the storages and lifetimes that AOTInductor plans for the CPU with torch's default options.

    Inductor lowers and schedules the program. Nothing is compiled and no compiler is needed. Dynamic sizes
    stay expressions. A program without weights is planned as code to which weights are bound later. A program
    with weights is planned as code that contains them, and Inductor inlines small constants.

    Raises:
        DeployError: The program is not on the CPU, or has data-dependent branches.
        CompileFailure: Inductor cannot lower the program (FE803).
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
    """Return why buffers cannot be planned for a device other than the CPU."""
    return (
        f"AOTInductor's buffers can be planned only for the CPU: for {device}, Inductor generates code "
        "with Triton and queries the GPU, which must be in this machine"
    )


class _Run:
    """One call of the wrapper code. A buffer is freed when its last handle is reset or the call returns.

    `held` is the liveness of the exported program, which has the same weights and inputs.
    """

    def __init__(self, held: Liveness) -> None:
        self._held = held
        self._storages: list[Storage] = list(held.storages[: held.held])
        self._events: list[tuple[int, int]] = []
        self._steps: list[NamedStep] = []
        self._handles: dict[str, int] = {}
        self._holders: Counter[int] = Counter()

    def of(self, wrapper: PlannedWrapper, names: Sequence[str]) -> Liveness:
        """Return the lifetimes of the wrapper's buffers; `names` are the names of its outputs."""
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
        unread = (
            f"AOTInductor: {name}: only the memory of its results is counted" for name in wrapper.unread
        )
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
                if index is not None:  # An input has no handle.
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

    def _step(self, line: BufferLine) -> NamedStep:
        step = NamedStep(line.name, line.name)
        if (node := line.node) is not None:
            step = NamedStep(line.name, operator_name(node), module_path(node), source_span(node))
        self._steps.append(step)
        return step

    def _take(self, line: BufferLine) -> int:
        dtype = "" if line.dtype is None else plain_name(line.dtype)
        return self._add(self._step(line), "activation", line.device, line.bytes, line.shape, dtype)

    def _add(
        self,
        step: NamedStep,
        kind: Kind,
        device: str,
        size: Size,
        shape: tuple[Size, ...] | None = None,
        dtype: str = "",
    ) -> int:
        self._storages.append(Storage(step.name, kind, device, size, shape, dtype, step.operator, step))
        self._events.append((len(self._steps) - 1, len(self._storages) - 1))
        return len(self._storages) - 1
