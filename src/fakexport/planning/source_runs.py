"""A model that runs on fakes at the sizes that are asked for: in eager mode, or trained for two steps."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, replace
from typing import Any

from torch import nn

from fakexport._torch.quiet_logs import torch_logs_silenced
from fakexport.capture import build_source
from fakexport.devices import Topology, emulate
from fakexport.error import InvalidValue, type_and_line
from fakexport.fake import Built, DeviceMap, install_transfers
from fakexport.memory import (
    ChosenSizes,
    Liveness,
    SizeRequest,
    TrainingInputs,
    Untrainable,
    eager_liveness,
    sizes_at,
    training_inputs,
    training_liveness,
)
from fakexport.planning.point import dtype_of_weights, multiplying, planned_devices, planned_steps
from fakexport.planning.source_programs import PlanError
from fakexport.planning.training import Training, enable_checkpointing
from fakexport.report import PlannedPoint, PlannedStep, Progress
from fakexport.sources import ExampleInputs, SourceError, Workload, WorkloadName, parse_dtype, resolve

_BATCH = 1
_CONTEXT = 4096


@dataclass(frozen=True)
class _Run:
    liveness: Liveness
    chosen: ChosenSizes
    dtype: str


class SourceRuns:
    """Runs a source on fakes at each choice of sizes: it is called once, or trained for two steps.

    Args:
        subject: The source, as `resolve` takes it.
        topology, device_map, dtype: What it is built for.
        training: How it is trained; None: it is called without autograd.
        announce: Called before each run.
    """

    def __init__(
        self,
        subject: str | nn.Module | Callable[[], Any],
        topology: Topology,
        *,
        device_map: str | Mapping[str, str] | None,
        dtype: str | None,
        training: Training | None,
        announce: Callable[[Progress], None],
    ) -> None:
        self._subject = subject
        self.topology = topology
        self.device_map = device_map
        self._dtype = None if dtype is None else parse_dtype(dtype)
        self.training = training
        self._announce = announce
        self.workload: WorkloadName = "forward" if training is None else "train"
        self.source = resolve(subject, workload=Workload(self.workload))
        self.assumptions: dict[str, None] = {}
        """What was chosen for the runs, one sentence each."""
        self.left_out: dict[str, None] = {}
        """What of the model the runs leave out, one sentence each."""
        self._runs: dict[str, _Run] = {}

    @property
    def placement(self) -> str | None:
        """The device map as the user wrote it."""
        return None if self.device_map is None else str(self.device_map)

    def completed(self, request: SizeRequest) -> SizeRequest:
        """Return the sizes as they are: those that are left open are chosen where the model is built."""
        return request

    def at(self, request: SizeRequest) -> PlannedPoint:
        """Return the plan at the sizes that are asked for.

        Raises:
            ValueError: the model does not have them, or cannot be trained as asked. One line.
            PlanError: it does not run.
        """
        run = self.run(request)
        devices = planned_devices(
            sizes_at(run.liveness, {}), self.topology, run.chosen, multiplying(run.liveness), largest=10
        )
        return PlannedPoint(
            batch=run.chosen.batch, context=run.chosen.context, as_in_example={}, devices=devices
        )

    def timeline(self, request: SizeRequest) -> Iterator[PlannedStep]:
        """Yield what each device holds, operator by operator."""
        yield from planned_steps(sizes_at(self.run(request).liveness, {}))

    def run(self, request: SizeRequest) -> _Run:
        """Return what training at these sizes holds."""
        key = str(request)
        if key not in self._runs:
            self._announce(Progress(1, 1, self.topology.canonical, "trace"))
            with torch_logs_silenced(), emulate(self.topology):
                self._runs[key] = self._trained(request)
        return self._runs[key]

    def _trained(self, request: SizeRequest) -> _Run:
        placed = None if self.device_map is None else DeviceMap.parse(self.device_map)
        built = build_source(self.source, self.topology, device_map=placed, dtype=self._dtype)
        with install_transfers(built.module, built.placement):
            try:
                inputs = self._inputs(built, request)
                self._prepare(built.module)
                found = self._liveness(built, inputs)
            except (InvalidValue, Untrainable, SourceError):
                raise
            except Exception as error:
                option = "--eager" if self.training is None else "--workload train"
                raise PlanError(
                    f"{option}: {self.source.spec} does not run on fake tensors for {self.topology.spec}: "
                    f"{type_and_line(error)}"
                ) from error
        chosen = ChosenSizes({}, inputs.batch, inputs.context, ())
        return _Run(found, chosen, dtype_of_weights(found))

    def _liveness(self, built: Built, inputs: TrainingInputs) -> Liveness:
        if self.training is None:
            return eager_liveness(built, inputs.args, inputs.kwargs)
        return training_liveness(
            built,
            inputs.args,
            inputs.kwargs,
            optimizer=self.training.optimizer,
            autocast=self.training.autocast,
        )

    def _inputs(self, built: Built, request: SizeRequest) -> TrainingInputs:
        """Return the inputs at the sizes; those of a library's model are derived for them."""
        if built.args or built.kwargs or self.source.kind == "python":
            self._note_loss(built.kwargs)
            return training_inputs(built.module, built.args, built.kwargs, request, built.mode)
        batch, context = request.batch or _BATCH, request.context or _longest(built.module)
        source = resolve(self._subject, workload=Workload(self.workload, batch, context))
        with built.mode:
            found = source.example_inputs(
                built.module, built.placement.input_device, self._dtype or source.dtype
            )
        self._note_loss(found.kwargs)
        self._note_inputs(found)
        asked = replace(request, batch=batch)
        inputs = training_inputs(built.module, found.args, found.kwargs, asked, built.mode)
        for role, given, size in (
            ("batch", request.batch, batch),
            ("context", request.context, inputs.context),
        ):
            if given is None and size is not None:
                self.assumptions[f"--{role} was not given: {size:,} is assumed"] = None
        return inputs

    def _prepare(self, module: nn.Module) -> None:
        """Let a model train: one that is in eval mode would draw no dropout, and keep less."""
        if self.training is None:
            return
        if not module.training:
            module.train()
            if self.source.kind == "python":
                self.assumptions["the model is in eval mode: it is planned in training mode"] = None
        if self.training.checkpointing:
            enable_checkpointing(module, self.source.spec)

    def _note_loss(self, given: Mapping[str, Any]) -> None:
        if self.training is None:
            return
        if "labels" in given:
            text = "the loss is the model's own, with labels"
        else:
            text = "the loss is what the model returns as one, or else the mean of the squares of its outputs"
        self.assumptions[text] = None

    def _note_inputs(self, inputs: ExampleInputs) -> None:
        if "attention_mask" in inputs.kwargs:
            self.assumptions["the attention mask is that of a padded batch"] = None
        self.assumptions.update(dict.fromkeys(inputs.assumptions))
        self.left_out.update(dict.fromkeys(f"{name} ({why})" for name, why in inputs.omitted.items()))
        if self.source.quantization is not None:
            self.left_out[f"FE105: the config is quantized ({self.source.quantization}), and this is not"] = (
                None
            )


def _longest(module: nn.Module) -> int:
    """Return the context that is assumed: what a model of transformers has positions for, or less."""
    config: Any = getattr(module, "config", None)
    text = config.get_text_config(decoder=True) if hasattr(config, "get_text_config") else config
    longest = getattr(text, "max_position_embeddings", None)
    return min(_CONTEXT, longest) if isinstance(longest, int) and longest > 0 else _CONTEXT
