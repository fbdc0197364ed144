"""A part of a multimodal model as a source of its own: `--component vision`.

The whole model runs once on its example inputs, on fake tensors. The inputs of a part are what the model
passes to it there, and its outputs are what the model reads of its result. The rest of the model is a part
too: it takes the results of the others. So the parts of a model fit together, and whatever is between its
modules is in one of them.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, contextmanager, nullcontext
from dataclasses import dataclass, field, replace
from typing import Any

import torch
from torch import nn

from fakexport._torch.fake_tensors import mode_of
from fakexport._torch.pytree import tree_leaves
from fakexport.error import type_and_line
from fakexport.history import recording
from fakexport.sources.component_calls import Call, Run, Unread, recorded_run, restored_attributes, stand_ins
from fakexport.sources.component_places import (
    ENCODERS,
    RESTS,
    Place,
    callable_modules,
    module_names,
    named_places,
    places,
)
from fakexport.sources.component_results import ReadField, put_back, read_fields, taken
from fakexport.sources.exchanged_forward import exchanged_forward
from fakexport.sources.fixed_numbers import buffer_of, numbers_among, tensors_of
from fakexport.sources.source import ExampleInputs, Source
from fakexport.sources.source_error import SourceError


@dataclass(frozen=True)
class Part:
    """How a program computes one part of a model.

    Args:
        call: The recorded call; None for the rest of the model.
        fields: What the model reads of its result.
        others: The recorded calls whose results the rest takes, by role.
        unread: Inputs of the whole model that the rest does not use.
        numbers: Inputs of the part that are numbers of the whole model, with the buffer that holds each.
    """

    call: Call | None
    fields: Mapping[str, ReadField]
    others: Mapping[str, tuple[Call, Mapping[str, ReadField]]]
    unread: tuple[str, ...] = ()
    numbers: Mapping[str, str] = field(default_factory=dict)

    @contextmanager
    def tracing(self, module: nn.Module) -> Iterator[None]:
        """Enter a context in which the whole model computes this part alone."""
        original = module.forward
        if self.call is not None:
            place = self.call.place
            method = getattr(module.get_submodule(place.path), place.method)
            owner = module.get_submodule(place.path)
            # A module is called, not its forward, so that what is hooked to it runs.
            call = owner if place.method == "forward" else method

            def forward(**named: Any) -> Any:
                assert self.call is not None
                named |= {name: getattr(module, buffer) for name, buffer in self.numbers.items()}
                args, kwargs = self.call.arguments(named)
                return taken(call(*args, **kwargs), self.fields)

        else:

            def forward(**named: Any) -> Any:
                return self._rest(module, original, named)

        with exchanged_forward(module, forward):
            yield

    def _rest(self, module: nn.Module, original: Any, named: Mapping[str, Any]) -> Any:
        given = dict(named)
        results = {}
        for role, (call, fields) in self.others.items():
            values = {name: given.pop(f"{role}_{name}") for name in fields}
            results[call.place] = lambda call=call, fields=fields, values=values: put_back(
                call.result, fields, values
            )
        with stand_ins(module, results):
            returned = original(**given, **{name: Unread() for name in self.unread})
        passed = {id(leaf) for leaf in tree_leaves(dict(named)) if isinstance(leaf, torch.Tensor)}
        return _without(returned, passed)


def component_source(
    source: Source,
    name: str | None,
    workload: str = "forward",
    *,
    is_dynamic: bool = False,
    has_inputs: bool = False,
) -> Source:
    """Return the source of a part.

    Args:
        name: A role (`vision`, `language`), or a module by its own name or that of its class; None: all.
    Raises:
        SourceError: It is not a model of transformers, or the options do not go together.
    """
    if source.component is not None and (name is not None or source.adapter is not None or has_inputs):
        raise SourceError(
            f"{source.spec} is {source.component} of a whole model: name the whole model, and no inputs"
        )
    if name is None:
        return source
    if source.parts is not None:
        return source.parts(f"{source.spec} --component {name}", name)
    if source.kind == "diffusers":
        raise SourceError(f"{source.spec} is one program: leave out --component {name}")
    if source.kind != "transformers":
        raise SourceError(f"--component applies to hf: and diffusers: models, which {source.spec} is not")
    if source.adapter is not None:
        raise SourceError("--component and --adapter do not go together")
    if workload != "forward":
        raise SourceError(f"--component applies to --workload forward, not {workload}")
    if has_inputs:
        raise SourceError("--component derives the inputs of a part from those of the whole model: pass none")

    def inputs(module: nn.Module, device: str, dtype: torch.dtype | None) -> ExampleInputs:
        parts = Parts.of(source, module, device, dtype)
        return parts.inputs(name, is_dynamic=is_dynamic)

    def tracing(module: nn.Module, inputs: ExampleInputs) -> AbstractContextManager[None]:
        return _tracing(source, module, inputs)

    return replace(
        source,
        spec=f"{source.spec} --component {name}",
        example_inputs=inputs,
        tracing=tracing,
        component=name,
    )


def components_of(
    source: Source, module: nn.Module, device: str, dtype: torch.dtype | None
) -> tuple[str, ...]:
    """Return the names of the parts that make up a whole model, in the order in which they run.

    Raises:
        SourceError: The model has no such parts, or does not run.
    """
    parts = Parts.of(source, module, device, dtype)
    if not parts.names:
        omitted = "".join(f"; {name} was not derived: {why}" for name, why in parts.whole.omitted.items())
        raise SourceError(f"{type(module).__name__} has no components that make up all of it{omitted}")
    return parts.names


@contextmanager
def _tracing(source: Source, module: nn.Module, inputs: ExampleInputs) -> Iterator[None]:
    assert inputs.part is not None
    with source.tracing(module, inputs), inputs.part.tracing(module):
        yield


@dataclass(frozen=True)
class Parts:
    """The parts of one model, after it ran.

    Args:
        module: The whole model.
        whole: Its example inputs.
        run: What it did with them.
        roles: The call of each role that there is.
    """

    module: nn.Module
    whole: ExampleInputs
    run: Run
    roles: Mapping[str, Call]

    @classmethod
    def of(cls, source: Source, module: nn.Module, device: str, dtype: torch.dtype | None) -> Parts:
        """Run the model in its fake mode, and return its parts.

        Raises:
            SourceError: The model does not run, or its own example inputs cannot be derived.
        """
        known = (*places(module), *callable_modules(module))
        mode = mode_of(module.parameters())
        with nullcontext() if mode is None else recording(mode):  # Values of grids are read.
            whole = (source.run_inputs or source.example_inputs)(module, device, dtype)
            run = _run(source, module, whole, known)
        roles: dict[str, Call] = {}
        for place in known:
            if place.role and place in run.calls:
                roles.setdefault(place.role, run.calls[place])
        return cls(module, whole, run, roles)

    @property
    def names(self) -> tuple[str, ...]:
        """Names of the parts that make up the whole model, in the order in which they run."""
        encoders = self._encoders()
        return (*encoders, self._rest_name()) if encoders and self._has_rest else ()

    @property
    def _has_rest(self) -> bool:
        """Whether the rest of the model can be a program: a session of a video cannot be an input."""
        known = (torch.Tensor, int, float, type(None))
        return all(isinstance(leaf, known) for leaf in tree_leaves(dict(self.whole.kwargs)))

    def inputs(self, name: str, *, is_dynamic: bool) -> ExampleInputs:
        """Return the example inputs of a part, with how it is computed.

        Raises:
            SourceError: The model has no such part, does not call it, or its calls do not fit one program.
        """
        encoders = self._encoders()
        is_rest = name == self._rest_name() or (name in RESTS and self._rest_name() != "head")
        if encoders and is_rest and self._has_rest and name not in self.roles:
            return self._of_rest(encoders)
        call = encoders.get(name) or self.roles.get(name) or self._alias(name, encoders) or self._named(name)
        return self._of_call(name, call, is_dynamic=is_dynamic)

    def _encoders(self) -> dict[str, Call]:
        """Return the parts whose results the rest of the model takes."""
        found = {role: self.roles[role] for role in ENCODERS if role in self.roles}
        if len(found) > 1:
            found.pop("encoder", None)
        if found and not self._is_generative() and "text" in self.roles:
            found["text"] = self.roles["text"]
        calls = list(found.values())
        return {
            role: call
            for role, call in found.items()
            if not any(other.place in call.inside for other in calls if other is not call)
        }

    def _is_generative(self) -> bool:
        module: Any = self.module
        try:
            return module.get_output_embeddings() is not None
        except (AttributeError, NotImplementedError):
            return False

    def _rest_name(self) -> str:
        if not self._is_generative():
            return "head"
        return "decoder" if set(self._encoders()) == {"encoder"} else "language"

    def _alias(self, name: str, encoders: Mapping[str, Call]) -> Call | None:
        """Return the only encoder, if it is of images or sounds as its input is."""
        main = str(getattr(self.module, "main_input_name", ""))
        role = "vision" if main.startswith("pixel") else "audio"
        return encoders.get("encoder") if name == role and main != "input_ids" else None

    def _named(self, name: str) -> Call:
        found = named_places(self.module, name)
        model = type(self.module).__name__
        if not found:
            raise SourceError(f"{model} has no component {name!r}; {self._listing()}")
        if len(found) > 1:
            paths = ", ".join(place.path for place in found)
            raise SourceError(f"{name!r} names several modules of {model}: {paths}: write one of these")
        if found[0] not in self.run.calls:
            why = "".join(f"; {key} was not derived: {reason}" for key, reason in self.whole.omitted.items())
            raise SourceError(f"{model} does not call {found[0]} on its example inputs{why}")
        return self.run.calls[found[0]]

    def _listing(self) -> str:
        roles = [*(self.names or self._encoders()), *(role for role in ("connector",) if role in self.roles)]
        modules = ", ".join(module_names(self.module))
        omitted = "".join(f"; {name} was not derived: {why}" for name, why in self.whole.omitted.items())
        return (
            f"it has {', '.join(roles)}, and " if roles else "it has "
        ) + f"its modules: {modules}{omitted}"

    def _of_call(self, name: str, call: Call, *, is_dynamic: bool) -> ExampleInputs:
        inputs, fields = call.inputs(), read_fields(call)
        of_whole = numbers_among(self.module, self.whole.kwargs, inputs)
        inputs |= {name: self.whole.kwargs[whole] for name, whole in of_whole.items()}
        what = f"{type(self.module).__name__} calls {call.place}"
        if not inputs:
            raise SourceError(f"{what} without tensors: it cannot be a program")
        if not fields:
            raise SourceError(f"{what} and does not use its result: it cannot be a program")
        numbers = self._numbers(call)
        if numbers and is_dynamic:
            raise SourceError(
                f"{what} with {', '.join(numbers)}, which a program cannot vary: "
                f"export {name} without --dynamic"
            )
        notes = [f"{name} is {call.place}, with the inputs that {type(self.module).__name__} passes to it"]
        if numbers:
            notes.append(f"{', '.join(numbers)}: fixed in the program")
        if call.again:
            notes.append(
                f"it is called {call.times} times with different inputs; these are of the first call"
            )
        return ExampleInputs(
            kwargs=inputs,
            assumptions=(*self.whole.assumptions, *notes, *self._missing()),
            part=Part(call, fields, {}, numbers={name: buffer_of(whole) for name, whole in of_whole.items()}),
        )

    def _of_rest(self, encoders: Mapping[str, Call]) -> ExampleInputs:
        others = {role: (call, read_fields(call)) for role, call in encoders.items()}
        model = type(self.module).__name__
        for role, (call, fields) in others.items():
            if not fields:
                raise SourceError(f"{model} calls {call.place} and does not use its result")
            if call.again:
                raise SourceError(
                    f"{model} calls {call.place} ({role}) {call.times} times with different inputs: the rest "
                    f"of it cannot be a program of its own"
                )
        tensors = tensors_of(self.module, self.whole.kwargs)
        touched = self.run.touched(tensors, [call.place for call in encoders.values()])
        read = {name: self.whole.kwargs[name] for name in touched}
        given = {
            f"{role}_{name}": value
            for role, (call, fields) in others.items()
            for name, value in taken(call.result, fields).items()
        }
        note = f"{self._rest_name()} is all of {model} but for {', '.join(encoders)}, whose results it takes"
        return ExampleInputs(
            kwargs={**read, **given},
            assumptions=(*self.whole.assumptions, note, *self._missing()),
            part=Part(None, {}, others, tuple(name for name in self.whole.kwargs if name not in read)),
        )

    def _missing(self) -> Iterator[str]:
        for name, reason in self.whole.omitted.items():
            yield f"the model ran without {name}, which was not derived: {reason}"

    def _numbers(self, call: Call) -> list[str]:
        """Return the whole numbers that a part is called with, and that are not settings of a config."""
        found = []
        for name, value in call.constants().items():
            leaves = [leaf for leaf in tree_leaves(value) if type(leaf) is int and abs(leaf) > 1]
            if leaves and not self._is_setting(name, value):
                found.append(f"{name}={value}")
        return found

    def _is_setting(self, name: str, value: Any) -> bool:
        configs = {
            id(config): config for part in self.module.modules() if (config := getattr(part, "config", 0))
        }
        return any(getattr(config, name, None) == value for config in configs.values())


def _run(source: Source, module: nn.Module, whole: ExampleInputs, known: Sequence[Place]) -> Run:
    try:
        with source.tracing(module, whole), restored_attributes(module):
            return recorded_run(module, whole.kwargs, known)
    except Exception as error:
        raise SourceError(
            f"the parts of {type(module).__name__} cannot be found, since it does not run on its example "
            f"inputs: {type_and_line(error)}"
        ) from error


def _without(value: Any, passed: set[int]) -> Any:
    """Return an output without what was passed in, which the caller has, and what stood for it."""
    if isinstance(value, Mapping):
        kept = {name: _without(item, passed) for name, item in value.items() if not _is_passed(item, passed)}
        return {name: item for name, item in kept.items() if not (isinstance(item, Mapping) and not item)}
    return value


def _is_passed(value: Any, passed: set[int]) -> bool:
    leaves = [leaf for leaf in tree_leaves(value) if leaf is not None]
    return all(isinstance(leaf, Unread) or id(leaf) in passed for leaf in leaves)
