"""What is known of a program and its graph does not say: written at capture, handed on with each change.

The facts are an attribute of the program, so that they live as long as it does and go with its shallow
copies. Nothing else reads or writes that attribute. `derived_program` hands them on.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace

import torch
from torch import nn
from torch.export import ExportedProgram

from fakexport.devices import Topology
from fakexport.documents import AdapterRecord, CallRecord, ParallelRecord, Parameter, Recipe
from fakexport.program.calling import FACTS, Calling, CheckedProgram
from fakexport.program.retargeting.device_move import DeviceMove
from fakexport.program.unbound_constant import UnboundConstant


@dataclass(frozen=True, kw_only=True)
class ProgramFacts:
    """The facts of one program, for the manifest of its archive.

    Args:
        source: What it was exported from: `hf:config.json`, `model.py:factory`, the name of a factory.
        topology: The devices it was exported for, `8xH100-80GB`.
        profiles: Names of the devices' profiles in order; None: those of the topology.
        device_map: Device by module path.
        dtype: The floating dtype that was asked for.
        dynamic_shapes: The dimensions that may vary, as the user put it.
        skipped_checks: What was assumed and what was not checked, one sentence each.
        versions: Versions of packages that took part besides fakexport and torch, by name.
        unbound: Why constants have no value.
        left_behind: Real weights that are fakes since the program is on devices that are not here, by name.
        recipes: How entries of a checkpoint in another layout become the weights, as an archive has it; None
            where no archive does, and `model` may know.
        load_hooks: What the model's own `load_state_dict` runs and `bind` does not, each with its module.
        computed: Weights that a checkpoint may lack, with the values that the code of the model gives them,
            as an archive has it, and None for one that is too large; None where `model` may know.
        prefix: Prefix of the weights' names in the checkpoint, and in the program; None if they are equal.
        call: The part of its inputs and outputs in generation; None for a program that is not a call of it.
        component: The part of the model of its source that it computes, by name; None for all of it.
        adapter: How the program needs an adapter; None for a model without one.
        parallel: The rank whose part of the model it is; None for all of the model.
        parameters: The parameters of the model's `forward`, for calls that pass arguments in another way than
            the example; empty if the example shows every way, or if they are not known.
        has_stand_in_inputs: Whether its example inputs are zeros that fakexport gave it.
        model: The module that was captured, which may know how its checkpoints are laid out; None after
            loading. Two facts may be equal and have other modules.
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
    parameters: tuple[Parameter, ...] = ()
    has_stand_in_inputs: bool = False
    model: nn.Module | None = field(default=None, compare=False, repr=False)

    @property
    def has_own_inputs(self) -> bool:
        """Whether its inputs, all of them named, are not those of the model's `forward`."""
        return self.component is not None or (self.adapter is not None and self.adapter.mode == "inputs")

    def __deepcopy__(self, memo: dict[int, object]) -> ProgramFacts:
        """Return the same: a copy of a program has no second module."""
        return self

    def of_weights(self) -> ProgramFacts:
        """Return only the facts that say how a checkpoint becomes the weights."""
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
        """Return the facts of the program that `bind` returns for a device map."""
        move = DeviceMove.parse(device_map, tuple(devices))
        here = self.elsewhere(str(move.of(device)) for device in devices) if move.targets else self
        return replace(here, left_behind=())

    def elsewhere(self, devices: Iterable[str], topology: str | None = None) -> ProgramFacts:
        """Return the facts of the program on other devices, with other profiles and no device map."""
        if topology is None and set(devices) == {"cpu"}:
            topology = "cpu"
        if topology is None:
            return replace(self, topology=None, profiles=None, device_map=None)
        known = Topology.parse(topology)
        profiles = tuple(device.profile.name for device in known.devices)
        return replace(self, topology=known.canonical, profiles=profiles, device_map=None)


def keep_facts(program: ExportedProgram, facts: ProgramFacts) -> None:
    """Make these the facts of a program, from now on."""
    vars(program)[FACTS] = facts
    if type(program) is ExportedProgram and not calling_of(program).is_plain:
        program.__class__ = CheckedProgram


def facts_of(program: ExportedProgram) -> ProgramFacts:
    """Return what is known of a program; nothing of one that torch or its passes made."""
    facts: ProgramFacts | None = vars(program).get(FACTS)
    return ProgramFacts() if facts is None else facts


def calling_of(program: ExportedProgram) -> Calling:
    """Return how a program is called."""
    return Calling(facts_of(program).parameters, program.call_spec.in_spec)
