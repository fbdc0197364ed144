"""Facts about a program that are not in its graph, recorded at capture and copied to modified programs.

The facts are an attribute of the program, so they exist as long as the program, and shallow copies include
them. Only this module accesses the attribute; `derived_program` copies it.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace

import torch
from torch import nn
from torch.export import ExportedProgram

from fakexport.emulation.devices import Topology
from fakexport.exporting.program.calling import FACTS, Calling, CheckedProgram
from fakexport.exporting.program.retargeting.device_move import DeviceMove
from fakexport.files.documents import (
    AdapterRecord,
    CallRecord,
    ParallelRecord,
    Parameter,
    Recipe,
    SizeRange,
    StageRecord,
    UnboundName,
    UnboundReason,
)
from fakexport.rules.diagnostics import Span

_CODES: dict[UnboundReason, str] = {"parameter": "FE601", "random": "FE602", "unknown": "FE603"}


@dataclass(frozen=True)
class UnboundConstant(UnboundName):
    """A constant that has no value, with the line that reads the constant.

    Args:
        span: The first line of user code that reads the constant, if known.
    """

    span: Span | None = None

    @property
    def code(self) -> str:
        """The code of the diagnostic for this constant, such as `FE601`."""
        return _CODES[self.reason]


@dataclass(frozen=True, kw_only=True)
class ProgramFacts:
    """The facts of one program, for the manifest of its archive.

    Args:
        source: The source of the model: `hf:config.json`, `model.py:factory`, or the name of a factory.
        topology: The devices that the program was exported for, such as `8xH100-80GB`.
        profiles: Names of the devices' profiles, in device order. None means the profiles of the topology.
        device_map: Device by module path.
        dtype: The requested floating point dtype.
        dynamic_shapes: The dynamic dimensions, as the user wrote them.
        skipped_checks: One sentence for each assumption and each omitted check.
        versions: Versions of the packages involved, by name, except fakexport and torch.
        unbound: The constants without a value, and the reasons.
        left_behind: Names of the real weights that became fake when the program was moved to devices that do
            not exist on this machine.
        recipes: Instructions to compute weights from checkpoint entries with different names or layouts. An
            archive stores them. None for a program that was not loaded from an archive; `model` may then
            provide them.
        load_hooks: Hooks of the model's `load_state_dict` that `bind` does not run, with their modules.
        computed: Weights that a checkpoint may lack, with the values that the model's code computes (None for
            a value that is too large). None for a program that was not loaded from an archive; `model` may
            then provide the values.
        prefix: The prefixes of weight names, in the checkpoint and in the program. None if they are equal.
        call: The roles of the inputs and outputs in text generation. None for other programs.
        component: The name of the part of the model that the program computes. None for the whole model.
        adapter: How the program uses an adapter. None for a model without an adapter.
        parallel: The rank whose shard of the model the program computes. None for the whole model.
        stage: The pipeline stage that the program computes. None for a program that was not cut into stages.
        sizes: The sizes for which callers use the program, if several programs divide the sizes among them.
        parameters: The parameters of the model's `forward`, for calls that pass arguments in a different form
            than the example inputs. Empty if no other form is possible, or if the parameters are unknown.
        unpacked_parameters: Number of parameters before quantization packed them. None for other programs.
        settings: The settings in the published `config.json` of the model, from `flat_settings`.
        has_stand_in_inputs: Whether the program's example inputs are zeros that fakexport added.
        model: The captured module, which may know the layouts of its checkpoints. None after loading. Ignored
            when facts are compared.
    """

    source: str = ""
    topology: str | None = None
    profiles: Sequence[str] | None = None
    device_map: Mapping[str, str] | None = None
    dtype: str | None = None
    dynamic_shapes: str | None = None
    skipped_checks: Sequence[str] = ()
    versions: Mapping[str, str] = field(default_factory=dict)
    unbound: Sequence[UnboundConstant] = ()
    left_behind: tuple[str, ...] = ()
    recipes: tuple[Recipe, ...] | None = None
    load_hooks: tuple[str, ...] = ()
    computed: Mapping[str, torch.Tensor | None] | None = field(default=None, compare=False, repr=False)
    prefix: tuple[str, str] | None = None
    call: CallRecord | None = None
    component: str | None = None
    adapter: AdapterRecord | None = None
    parallel: ParallelRecord | None = None
    stage: StageRecord | None = None
    sizes: tuple[SizeRange, ...] = ()
    parameters: tuple[Parameter, ...] = ()
    unpacked_parameters: int | None = None
    settings: Mapping[str, str] = field(default_factory=dict)
    has_stand_in_inputs: bool = False
    model: nn.Module | None = field(default=None, compare=False, repr=False)

    @property
    def has_own_inputs(self) -> bool:
        """Whether fakexport, rather than the model's `forward`, defines the program's inputs."""
        return self.component is not None or (self.adapter is not None and self.adapter.mode == "inputs")

    def __deepcopy__(self, memo: dict[int, object]) -> ProgramFacts:
        """Return the same object, so that copying a program does not copy the module."""
        return self

    def of_weights(self) -> ProgramFacts:
        """Return only the facts about how to compute the weights from the entries of a checkpoint."""
        return ProgramFacts(
            recipes=self.recipes,
            load_hooks=self.load_hooks,
            computed=self.computed,
            prefix=self.prefix,
            model=self.model,
            adapter=self.adapter,
            parallel=self.parallel,
        )

    def bound(self, devices: Sequence[str], device_map: str | Mapping[str, str] | None) -> ProgramFacts:
        """Return the facts of the program that `bind` returns with this device map."""
        move = DeviceMove.parse(device_map, tuple(devices))
        here = self.elsewhere(str(move.of(device)) for device in devices) if move.targets else self
        return replace(here, left_behind=())

    def elsewhere(self, devices: Iterable[str], topology: str | None = None) -> ProgramFacts:
        """Return the facts of this program on other devices, with new profiles and without a device map."""
        if topology is None and set(devices) == {"cpu"}:
            topology = "cpu"
        if topology is None:
            return replace(self, topology=None, profiles=None, device_map=None)
        known = Topology.parse(topology)
        profiles = tuple(device.profile.name for device in known.devices)
        return replace(self, topology=known.canonical, profiles=profiles, device_map=None)


def keep_facts(program: ExportedProgram, facts: ProgramFacts) -> None:
    """Set the facts of a program."""
    vars(program)[FACTS] = facts
    if type(program) is ExportedProgram and not calling_of(program).is_plain:
        program.__class__ = CheckedProgram


def facts_of(program: ExportedProgram) -> ProgramFacts:
    """Return the facts of a program. They are empty if torch or one of its passes created the program."""
    facts: ProgramFacts | None = vars(program).get(FACTS)
    return ProgramFacts() if facts is None else facts


def calling_of(program: ExportedProgram) -> Calling:
    """Return the ways in which a program can be called."""
    return Calling(facts_of(program).parameters, program.call_spec.in_spec)
