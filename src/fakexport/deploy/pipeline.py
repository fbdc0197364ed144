"""Run one pipeline stage of a program in each of several processes, with torch's pipeline schedule.

All processes get the same inputs. They tell each other which tensors they make and need, so that each knows
the shapes of what it receives. Then `torch.distributed.pipelining` sends the tensors. Seen on torch 2.13.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import torch
import torch.distributed as dist
from torch import nn
from torch.distributed.pipelining import PipelineStage, ScheduleGPipe

from fakexport._torch.tracing.symbolic_numbers import expression_of, size_value
from fakexport.exporting.guards import linear_size
from fakexport.exporting.interface import leaf_names
from fakexport.exporting.program import user_inputs

from .artifact import Artifact, DeployError
from .loaded_program import LoadedProgram
from .signature import Signature
from .stages import stage_of

_Shape = tuple[Any, ...]


@dataclass(frozen=True)
class _Tensor:
    """A tensor that a stage makes: sizes and strides as expressions, and the dtype."""

    sizes: _Shape
    strides: _Shape
    dtype: torch.dtype

    @classmethod
    def of(cls, value: torch.Tensor) -> _Tensor:
        return cls(_expressions(value.shape), _expressions(value.stride()), value.dtype)

    def order(self, sizes: Mapping[str, int]) -> tuple[int, ...]:
        """Return the dimensions in the order of memory. Sent in this order, a dense tensor is contiguous."""
        strides = [size_value(stride, sizes) for stride in self.strides]
        return tuple(sorted(range(len(strides)), key=lambda dim: (-strides[dim], dim)))

    def sent(self, sizes: Mapping[str, int]) -> torch.Tensor:
        """Return a meta tensor with the form in which the tensor is sent."""
        shape = [size_value(self.sizes[dim], sizes) for dim in self.order(sizes)]
        return torch.empty(shape, dtype=self.dtype, device="meta")


def _expressions(sizes: Iterable[int | torch.SymInt]) -> _Shape:
    return tuple(expression_of(size) if isinstance(size, torch.SymInt) else size for size in sizes)


def pipelined(opened: Artifact, microbatches: int) -> PipelinedStage:
    """Return the stage that `open_program` opened, for a call by all processes. See `PipelinedStage`."""
    assert isinstance(opened, LoadedProgram)
    return PipelinedStage(opened, microbatches)


class PipelinedStage:
    """One stage of a program, which can be called like the whole program, by all processes at once.

    Args:
        stage: The bound stage that this process runs. The process of the first stage has rank 0.
        microbatches: Number of parts into which the inputs are cut along their first dimension.
    """

    def __init__(self, stage: LoadedProgram, microbatches: int = 1) -> None:
        self._stage, self._microbatches = stage, microbatches
        self._record = stage_of(stage.program)
        inputs = [(spec.name, node.meta.get("val")) for spec, node in user_inputs(stage.program)]
        self._inputs = {name: value for name, value in inputs if isinstance(value, torch.Tensor)}
        (returned,) = stage.program.graph.output_node().args
        values = dict(zip(leaf_names(stage.program.call_spec.out_spec), returned, strict=True))
        self._made = {name: _Tensor.of(node.meta["val"]) for name, node in values.items()}

    @property
    def signature(self) -> Signature:
        """Inputs and outputs of this stage."""
        return self._stage.signature

    def __call__(self, inputs: Mapping[str, torch.Tensor]) -> dict[str, torch.Tensor]:
        """Run all stages. Return the outputs of the program in the process of the first stage, else {}."""
        record, count = self._record, self._microbatches
        if record.stage == 0:
            self._stage.signature.check(inputs)
        made, takes, sizes = self._exchanged(inputs)
        # An output may have the name of an input of the program, which a stage takes.
        values = {name: each for name, each in made.items() if name not in record.outputs}
        sent = [
            [
                name
                for name in values
                if values[name][0] <= stage and any(name in t for t in takes[stage + 1 :])
            ]
            for stage in range(record.stages - 1)
        ]
        received = sent[record.stage - 1] if record.stage else []
        passed = sent[record.stage] if record.stage + 1 < record.stages else []
        own = {name: inputs[name] for name in self._inputs if name in inputs}
        devices = [tensor.device for tensor in self._stage.signature.inputs]
        device = torch.device(devices[0] if devices else "cpu")
        try:
            orders = {name: made[name][1].order(sizes) for name in (*received, *passed)}
            forms = [tuple(made[name][1].sent(sizes) for name in names) for names in (received, passed)]
        except KeyError:
            raise DeployError(
                "a stage receives a tensor whose size is known only at run time; run all stages in one "
                "process"
            ) from None
        module = _Passing(self._stage, received, passed, orders)
        # torch expects that each stage passes something on, the last one too.
        nothing = (torch.zeros(1, device="meta"),)
        taken = forms[0] or (nothing if record.stage else ())
        stage = PipelineStage(
            module, record.stage, record.stages, device, input_args=taken, output_args=forms[1] or nothing
        )
        with torch.no_grad():
            schedule: Any = ScheduleGPipe(stage, count)
            schedule.eval(**own)
        found = {name: [each[name].cpu() for each in module.made] for name in module.made[0]}
        kept = {name: found[name] for name in found if name in record.outputs}
        gathered: list[Any] | None = [None] * record.stages if record.stage == 0 else None
        dist.gather_object(kept, gathered)
        if gathered is None:
            return {}
        parts = {name: each for outputs in gathered for name, each in outputs.items()}
        return {name: torch.cat(parts[name]) if count > 1 else parts[name][0] for name in record.outputs}

    def _exchanged(
        self, inputs: Mapping[str, torch.Tensor]
    ) -> tuple[dict[str, tuple[int, _Tensor]], list[set[str]], dict[str, int]]:
        """Return the stage of each tensor, what each stage takes, and the sizes of one microbatch."""
        count = self._microbatches
        sizes = dict(_symbols(self._inputs, inputs)) if self._record.stage == 0 else {}
        batch = _batch(self._inputs) if self._record.stage == 0 else None
        found: list[Any] = [None] * self._record.stages
        dist.all_gather_object(found, (self._made, set(self._inputs), sizes, batch))
        sizes, batch = found[0][2:]
        made = {name: (stage, each) for stage, (own, *_) in enumerate(found) for name, each in own.items()}
        if count > 1:
            outputs = [made[name][1].sizes for name in self._record.outputs]
            if batch is None or any(not shape or shape[0] != batch for shape in outputs):
                raise DeployError(
                    "microbatches require that all inputs and outputs have the same dynamic size in their "
                    "first dimension, and only there"
                )
            size, rest = divmod(sizes[str(batch)], count)
            if rest:
                raise DeployError(f"a batch of {size * count + rest} cannot be cut into {count} equal parts")
            sizes[str(batch)] = size
        return made, [takes for _, takes, *_ in found], sizes


class _Passing(nn.Module):
    """A stage that also passes on what later stages need from earlier ones."""

    def __init__(
        self,
        stage: LoadedProgram,
        received: Sequence[str],
        passed: Sequence[str],
        orders: Mapping[str, tuple[int, ...]],
    ) -> None:
        super().__init__()
        self._stage, self._received, self._passed, self._orders = stage, received, passed, orders
        self.made: list[dict[str, torch.Tensor]] = []
        """What the stage returned, for each microbatch."""

    def forward(self, *received: torch.Tensor, **inputs: torch.Tensor) -> tuple[torch.Tensor, ...]:
        values = dict(inputs)
        for name, tensor in zip(self._received, received, strict=bool(self._received)):
            order = self._orders[name]
            values[name] = tensor.permute([order.index(dim) for dim in range(len(order))])
        taken = [tensor.name for tensor in self._stage.signature.inputs]
        made = self._stage({name: values[name] for name in taken})
        self.made.append(made)
        values |= {name: made[name] for name in self._passed if name in made}
        passed = tuple(values[name].permute(self._orders[name]).contiguous() for name in self._passed)
        return passed or (torch.zeros(1),)


def _symbols(wanted: Mapping[str, Any], inputs: Mapping[str, torch.Tensor]) -> Sequence[tuple[str, int]]:
    """Return the value of each symbol in the sizes of the inputs."""
    found = []
    for name, value in wanted.items():
        for size, actual in zip(value.shape, inputs[name].shape, strict=True):
            if isinstance(size, torch.SymInt) and (linear := linear_size(expression_of(size))) is not None:
                symbol, times, plus = linear
                found.append((symbol, (actual - plus) // times))
    return found


def _batch(inputs: Mapping[str, Any]) -> Any:
    """Return the symbol that all inputs have as their first size, and only there, or None."""
    shapes = [_expressions(value.shape) for value in inputs.values()]
    first = {shape[0] for shape in shapes if shape}
    (batch, *others) = first or {None}
    is_alone = not others and all(shape and batch not in shape[1:] for shape in shapes)
    return batch if is_alone and getattr(batch, "is_Symbol", False) else None
