"""Run a model on fake tensors: in eager mode, optionally next to its program, or for two training steps."""

from __future__ import annotations

import functools
import re
from collections.abc import Iterator, Mapping
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, replace
from typing import Any

import torch
from torch import nn

from fakexport._torch.costs.operator_memory import tensors_in
from fakexport._torch.quiet_logs import torch_logs_silenced
from fakexport._torch.tracing_lock import one_at_a_time
from fakexport.emulation.devices import emulate
from fakexport.emulation.fake import FakeModel, install_transfers
from fakexport.error import FakexportError, InvalidValue, type_and_line
from fakexport.exporting.capture import build_source
from fakexport.models.sources import ExampleInputs, SourceError, Workload, WorkloadName, known_masks
from fakexport.planning.memory import (
    BeyondTable,
    ChosenSizes,
    Liveness,
    OptimizerName,
    SizeRequest,
    TrainingInputs,
    Untrainable,
    eager_liveness,
    sizes_at,
    training_inputs,
    training_liveness,
)
from fakexport.planning.point import (
    PlannedProgram,
    dtype_of_weights,
    multiplying,
    planned_devices,
    planned_steps,
    unmodeled_lines,
)
from fakexport.planning.source_programs import BATCH, CONTEXT, PlanError, PlanSource, SourcePrograms
from fakexport.report import PlannedPoint, PlannedStep

_POSITIONS = re.compile(r"^(?!.*rel).*(pos|wpe)")


@dataclass(frozen=True)
class _Run:
    liveness: Liveness
    chosen: ChosenSizes


class SourceRuns:
    """Run a source on fake tensors at each choice of sizes: call it once, or train it for two steps.

    `training` is None to call the model without autograd.
    """

    def __init__(self, given: PlanSource, training: Training | None) -> None:
        self.given = given
        self.training = training
        self.workload: WorkloadName = "forward" if training is None else "train"
        self.source = given.read(Workload(self.workload)).source
        self._assumed: dict[str, None] = {}
        self._left_out: dict[str, None] = {}
        self._runs: dict[str, _Run] = {}

    @property
    def assumptions(self) -> tuple[str, ...]:
        return (*self.source.assumptions, *self._assumed)

    def left_out_at(self, request: SizeRequest) -> tuple[str, ...]:
        return tuple(self._left_out)

    def dtype(self, request: SizeRequest) -> str:
        return dtype_of_weights(self.run(request).liveness)

    def completed(self, request: SizeRequest) -> SizeRequest:
        """Return the request unchanged. Sizes that it leaves open are chosen when the model is built."""
        return request

    def at(self, request: SizeRequest) -> PlannedPoint:
        """Return the plan at the requested sizes.

        Raises:
            ValueError: The model has no dimension for a requested size, or cannot be trained as requested.
            PlanError: The model does not run.
        """
        run = self.run(request)
        devices = planned_devices(
            sizes_at(run.liveness, {}), self.given.topology, run.chosen, multiplying(run.liveness), largest=10
        )
        return PlannedPoint(
            batch=run.chosen.batch, context=run.chosen.context, as_in_example={}, devices=devices
        )

    def timeline(self, request: SizeRequest) -> Iterator[PlannedStep]:
        yield from planned_steps(sizes_at(self.run(request).liveness, {}))

    def run(self, request: SizeRequest) -> _Run:
        """Return the run at these sizes, with its liveness. The result is cached."""
        key = str(replace(request, bounds={}))  # A run has no data-dependent sizes.
        if key not in self._runs:
            self.given.note_trace()
            with torch_logs_silenced(), emulate(self.given.topology):
                self._runs[key] = self._trained(request)
        return self._runs[key]

    def _trained(self, request: SizeRequest) -> _Run:
        given = self.given
        built = build_source(self.source, given.topology, device_map=given.device_map, dtype=given.dtype)
        with install_transfers(built.module, built.placement), _within_tables(built.module):
            try:
                inputs = self._inputs(built, request)
                self._prepare(built.module)
                found = self._liveness(built, inputs)
            except (InvalidValue, Untrainable, SourceError):
                raise
            except Exception as error:
                option = "--eager" if self.training is None else "--workload train"
                spec = self.given.topology.spec
                raise PlanError(
                    f"{option}: {self.source.spec} does not run on fake tensors for {spec}: "
                    f"{type_and_line(error)}"
                ) from error
        self._left_out.update(dict.fromkeys(unmodeled_lines(found)))
        chosen = ChosenSizes({}, inputs.batch, inputs.context, ())
        return _Run(found, chosen)

    @one_at_a_time
    def _liveness(self, built: FakeModel, inputs: TrainingInputs) -> Liveness:
        with known_masks(built.mode, tensors_in((list(inputs.args), dict(inputs.kwargs)))):
            if self.training is None:
                return eager_liveness(built, inputs.args, inputs.kwargs)
            return training_liveness(
                built,
                inputs.args,
                inputs.kwargs,
                optimizer=self.training.optimizer,
                autocast=self.training.autocast,
            )

    def _inputs(self, built: FakeModel, request: SizeRequest) -> TrainingInputs:
        """Return the inputs at the requested sizes. For a library's model, inputs are derived."""
        if built.args or built.kwargs or self.source.kind == "python":
            self._note_loss(built.kwargs)
            return training_inputs(built.module, built.args, built.kwargs, request, built.mode)
        batch, context = request.batch or BATCH, request.context or _longest(built.module)
        source = self.given.read(Workload(self.workload, batch, context)).source
        with built.mode:
            found = source.example_inputs(
                built.module, built.placement.input_device, self.given.dtype or source.dtype
            )
        self._note_loss(found.kwargs)
        self._note_inputs(found, built.module)
        asked = replace(request, batch=batch)
        inputs = training_inputs(built.module, found.args, found.kwargs, asked, built.mode)
        for role, given, size in (
            ("batch", request.batch, batch),
            ("context", request.context, inputs.context),
        ):
            if given is None and size is not None:
                self._assumed[f"--{role} was not given: {size:,} is assumed"] = None
        return inputs

    def _prepare(self, module: nn.Module) -> None:
        """Before training, enable training mode (it includes dropout), and checkpointing if requested."""
        if self.training is None:
            return
        if not module.training:
            module.train()
            if self.source.kind == "python":
                self._assumed["the model is in eval mode, but the plan is for training mode"] = None
        if self.training.checkpointing:
            enable_checkpointing(module, self.source.spec)

    def _note_loss(self, given: Mapping[str, Any]) -> None:
        if self.training is None:
            return
        if "labels" in given:
            text = "the model computes the loss from labels"
        else:
            text = "the loss is the `loss` that the model returns, or else the mean square of its outputs"
        self._assumed[text] = None

    def _note_inputs(self, inputs: ExampleInputs, module: nn.Module) -> None:
        if "attention_mask" in inputs.kwargs:
            self._assumed["the attention mask is for a padded batch"] = None
        self._assumed.update(dict.fromkeys(inputs.assumptions))
        self._left_out.update(dict.fromkeys(f"{name} ({why})" for name, why in inputs.omitted.items()))
        quantization = self.source.quantization
        if quantization is not None and (reason := quantization.left_out(module)) is not None:
            text = (
                f"FE105: the config has a `quantization_config` ({quantization.method}), but the model was "
                f"built without it: {reason}"
            )
            self._left_out[text] = None


def _longest(module: nn.Module) -> int:
    """Return the default context: 4,096, or fewer if a transformers model has fewer positions."""
    config: Any = getattr(module, "config", None)
    text = config.get_text_config(decoder=True) if hasattr(config, "get_text_config") else config
    longest = getattr(text, "max_position_embeddings", None)
    return min(CONTEXT, longest) if isinstance(longest, int) and longest > 0 else CONTEXT


@contextmanager
def _within_tables(module: nn.Module) -> Iterator[None]:
    """Reject lookups of more positions than a table has, because torch cannot check fake indices."""

    def check(table: nn.Module, args: tuple[Any, ...], *, name: str) -> None:
        looked_up = args[0].shape[-1] if args and isinstance(args[0], torch.Tensor) and args[0].dim() else 0
        rows = getattr(table, "num_embeddings", looked_up)
        if looked_up > rows:
            raise InvalidValue(
                f"the model looks up {looked_up:,} positions in {name}, which has only {rows:,} rows"
            )

    tables = [
        (name, part)
        for name, part in module.named_modules()
        if isinstance(part, nn.Embedding) and _POSITIONS.search(name.rpartition(".")[2])
    ]
    with ExitStack() as stack:
        for name, table in tables:
            handle = table.register_forward_pre_hook(functools.partial(check, name=name))
            stack.callback(handle.remove)
        yield


# Methods that enable checkpointing: in transformers, in earlier versions of transformers, and in timm.
_CHECKPOINTING = (
    "activation_checkpointing_enable",
    "gradient_checkpointing_enable",
    "set_grad_checkpointing",
)


@dataclass(frozen=True)
class Training:
    """How a model is trained. Without `autocast`, everything is computed in the dtype of the weights."""

    optimizer: OptimizerName = "adamw"
    checkpointing: bool = False
    autocast: torch.dtype | None = None

    def __str__(self) -> str:
        """Return a description for a title: `AdamW, checkpointing`."""
        parts = [_NAMES[self.optimizer]]
        parts += ["checkpointing"] if self.checkpointing else []
        parts += [f"autocast to {str(self.autocast).removeprefix('torch.')}"] if self.autocast else []
        return ", ".join(parts)


_NAMES: Mapping[OptimizerName, str] = {"adamw": "AdamW", "adam": "Adam", "sgd": "SGD"}


def enable_checkpointing(module: nn.Module, spec: str) -> None:
    """Enable activation checkpointing of a model's blocks, or raise if it has no method for that."""
    enable = next(filter(callable, (getattr(module, name, None) for name in _CHECKPOINTING)), None)
    if enable is None:
        raise InvalidValue(
            f"--checkpointing: {spec} has no {_CHECKPOINTING[0]}; call torch.utils.checkpoint in its "
            "forward instead of using the option"
        )
    try:
        enable()
    except (ValueError, AssertionError, NotImplementedError) as error:
        raise InvalidValue(f"--checkpointing: {spec}: {type_and_line(error)}") from error


class SourceColumns(SourceRuns):
    """Plan the memory of a model twice: for its exported program, and for eager mode.

    Eager mode also supports models that do not export, and sizes that the program does not accept. In these
    cases only eager mode is planned.
    """

    def __init__(self, given: PlanSource, *, has_aoti: bool = False) -> None:
        super().__init__(given, None)
        self.programs = SourcePrograms(given, "forward", has_aoti=has_aoti)
        self._found: dict[str, PlannedProgram] = {}
        self._refusals: dict[str, None] = {}

    def left_out_at(self, request: SizeRequest) -> tuple[str, ...]:
        program = self._found.get(str(request))
        own = () if program is None else program.left_out
        return (*super().left_out_at(request), *self.programs.left_out, *own, *self._refusals)

    def timeline(self, request: SizeRequest) -> Iterator[PlannedStep]:
        if (program := self._found.get(str(request))) is not None:
            yield from program.timeline(request)
        for step in super().timeline(request):
            yield replace(step, is_eager=True)

    def completed(self, request: SizeRequest) -> SizeRequest:
        """Return the sizes with the program's defaults for sizes that the request leaves open."""
        try:
            return self.programs.completed(request)
        except (PlanError, InvalidValue) as error:
            self._note(error)
            return request

    def at(self, request: SizeRequest) -> PlannedPoint:
        """Return the plan at the requested sizes. Raises the errors of eager mode, but not of the program."""
        eager = super().at(request)
        try:
            program = self._found[str(request)] = self.programs.program_at(request)
            point = program.at(request)
        except BeyondTable:
            raise
        except (PlanError, InvalidValue) as error:
            self._note(error)
            self._found.pop(str(request), None)
            point = replace(eager, devices=())
        return replace(point, eager=eager.devices)

    def _note(self, error: FakexportError) -> None:
        self._refusals[f"the program: {error}"] = None
