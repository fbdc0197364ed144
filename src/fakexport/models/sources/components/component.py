"""Parts of a multimodal model as separate sources: `--component vision`.

The whole model runs once on its example inputs, with fake tensors. The inputs of a part are the arguments
that the model passes to it. Its outputs are the results that the model uses. The rest of the model is also a
part. Its inputs include the results of the other parts. Together, the parts therefore compute the whole
model, including the code between its modules.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager, nullcontext
from dataclasses import dataclass, field, replace
from typing import Any

import torch
from torch import nn

from fakexport._torch.emulation.fake_tensors import mode_of
from fakexport._torch.pytree import tree_leaves, tree_map
from fakexport.emulation.history import recording
from fakexport.error import type_and_line
from fakexport.models.sources.components.component_calls import (
    Call,
    ReadField,
    Run,
    Unread,
    put_back,
    read_fields,
    recorded_run,
    restored_attributes,
    stand_ins,
    taken,
)
from fakexport.models.sources.components.component_places import (
    ENCODERS,
    FORWARD,
    RESTS,
    Place,
    callable_modules,
    module_names,
    named_places,
    places,
)
from fakexport.models.sources.media_inputs.fixed_numbers import buffer_of, numbers_among, tensors_of
from fakexport.models.sources.patched_forward import patched_forward
from fakexport.models.sources.source import ExampleInputs, Source
from fakexport.models.sources.source_error import SourceError


@dataclass(frozen=True)
class Part:
    """Instructions for computing one part of a model.

    Args:
        call: The recorded call of the part, or None for the rest of the model.
        fields: The fields of the call's result that the model reads.
        others: For the rest of the model: by role, the recorded calls whose results it takes as inputs.
        unread: For the rest of the model: stand-ins for inputs of the whole model that the rest does not use.
        numbers: Maps each input of the part that the whole model receives as Python numbers to the buffer
            that contains these numbers.
    """

    call: Call | None
    fields: Mapping[str, ReadField]
    others: Mapping[str, tuple[Call, Mapping[str, ReadField]]]
    unread: Mapping[str, Any] = field(default_factory=dict)
    numbers: Mapping[str, str] = field(default_factory=dict)

    @contextmanager
    def tracing(self, module: nn.Module) -> Iterator[None]:
        """Enter a context in which the whole model computes only this part."""
        original = module.forward
        if (recorded := self.call) is not None:
            owner = module.get_submodule(recorded.place.path)
            # The module is called instead of its forward, so that its hooks run.
            method = recorded.place.method
            call = owner if method == FORWARD else getattr(owner, method)

        def forward(**named: Any) -> Any:
            if recorded is None:
                return self._rest(module, original, named)
            named |= {name: getattr(module, buffer) for name, buffer in self.numbers.items()}
            args, kwargs = recorded.arguments(named)
            return taken(call(*args, **kwargs), self.fields)

        with patched_forward(module, forward):
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
            returned = original(**given, **self.unread)
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
    """Return the source of a part of a model.

    Args:
        name: A role (`vision`, `language`), or the path or class name of a module. If it is None, the source
            is returned unchanged.
    Raises:
        SourceError: the source is not a transformers model, or options conflict.
    """
    if source.component is not None and (name is not None or source.adapter is not None or has_inputs):
        raise SourceError(
            f"{source.spec} is already the component {source.component}: do not pass --component, --adapter "
            "or inputs"
        )
    if name is None:
        return source
    if source.parts is not None:
        return source.parts(f"{source.spec} --component {name}", name)
    if source.kind == "diffusers":
        raise SourceError(f"{source.spec} is a single program: remove --component {name}")
    if source.kind != "transformers":
        raise SourceError(f"--component supports hf: and diffusers: models, not {source.spec}")
    if source.adapter is not None:
        raise SourceError("--component cannot be combined with --adapter")
    if workload not in ("forward", "prefill", "decode"):
        raise SourceError(f"--component supports --workload forward, prefill and decode, not {workload}")
    if has_inputs:
        raise SourceError("--component derives the inputs from the whole model: do not pass inputs")

    def inputs(module: nn.Module, device: str, dtype: torch.dtype | None) -> ExampleInputs:
        return Parts.of(source, module, device, dtype).inputs(name, is_dynamic=is_dynamic)

    @contextmanager
    def tracing(module: nn.Module, inputs: ExampleInputs) -> Iterator[None]:
        with source.tracing(module, inputs), inputs.part.tracing(module):
            yield

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
    """Return the names of the parts that together make up a model, in the order in which they run."""
    parts = Parts.of(source, module, device, dtype)
    if not parts.names:
        raise SourceError(f"{type(module).__name__} cannot be split into components{parts.omitted}")
    return parts.names


@dataclass(frozen=True)
class Parts:
    """The parts of one model, found by running the model once on example inputs of the whole model.

    `run` is the record of the run, and `roles` has the recorded call for each role.
    """

    module: nn.Module
    whole: ExampleInputs
    run: Run
    roles: Mapping[str, Call]

    @classmethod
    def of(cls, source: Source, module: nn.Module, device: str, dtype: torch.dtype | None) -> Parts:
        """Run the model in its fake mode, and return its parts.

        Raises:
            SourceError: the model does not run, or its own example inputs cannot be derived.
        """
        known = (*places(module), *callable_modules(module))
        mode = mode_of(module.parameters())
        with nullcontext() if mode is None else recording(mode):  # The model reads the values of grids.
            whole = source.example_inputs(module, device, dtype)
            run = _run(source, module, whole, known)
        roles: dict[str, Call] = {}
        for place in known:
            if place.role and place in run.calls:
                roles.setdefault(place.role, run.calls[place])
        return cls(module, whole, run, roles)

    @property
    def names(self) -> tuple[str, ...]:
        """Names of the parts that make up the whole model, in execution order; () if it cannot be split."""
        encoders = self._encoders()
        return (*encoders, self._rest_name()) if encoders and self._has_rest else ()

    @property
    def omitted(self) -> str:
        """A clause for each input of the whole model that could not be derived."""
        return "".join(
            f"; the input {name} was not derived: {why}" for name, why in self.whole.omitted.items()
        )

    @property
    def _has_rest(self) -> bool:
        """Whether the rest of the model can be exported: all inputs of the model are tensors or numbers."""
        known = (torch.Tensor, int, float, type(None))
        return all(isinstance(leaf, known) for leaf in tree_leaves(dict(self.whole.kwargs)))

    def inputs(self, name: str, *, is_dynamic: bool) -> ExampleInputs:
        """Return the example inputs of a part, with instructions for computing the part.

        Raises:
            SourceError: the model has no such part, does not call it, or calls it in a way that needs several
                programs.
        """
        encoders = self._encoders()
        is_rest = name == self._rest_name() or (name in RESTS and self._rest_name() != "head")
        # A call that reads a cache does not run the encoders: the cache contains their results.
        if (encoders or self.whole.cache) and is_rest and self._has_rest and name not in self.roles:
            return self._of_rest(name, encoders)
        call = encoders.get(name) or self.roles.get(name) or self._alias(name, encoders) or self._named(name)
        return self._of_call(name, call, is_dynamic=is_dynamic)

    def _encoders(self) -> dict[str, Call]:
        """Return the parts whose results are inputs of the rest of the model."""
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
        """Return the call of the `encoder` if the name is the modality of the main input, or None."""
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
            raise SourceError(f"{name!r} matches several modules of {model}; use one of the paths {paths}")
        if found[0] not in self.run.calls:
            raise SourceError(
                f"{model} does not call {found[0]} when it runs on its example inputs{self.omitted}"
            )
        return self.run.calls[found[0]]

    def _listing(self) -> str:
        roles = [*(self.names or self._encoders()), *({"connector"} & self.roles.keys())]
        listed = f"use {', '.join(roles)}, or" if roles else "use"
        return f"{listed} one of its modules: {', '.join(module_names(self.module))}{self.omitted}"

    def _of_call(self, name: str, call: Call, *, is_dynamic: bool) -> ExampleInputs:
        inputs, fields = call.inputs(), read_fields(call)
        of_whole = numbers_among(self.module, self.whole.kwargs, inputs)
        inputs |= {name: self.whole.kwargs[whole] for name, whole in of_whole.items()}
        what = f"{type(self.module).__name__} calls {call.place}"
        if not inputs:
            raise SourceError(f"{what} without tensors, so this component cannot be exported")
        if not fields:
            raise SourceError(f"{what} and does not use its result, so this component cannot be exported")
        numbers = self._numbers(call)
        if numbers and is_dynamic:
            raise SourceError(
                f"{what} with {', '.join(numbers)}, which must be constant in a program: export "
                f"{name} without --dynamic"
            )
        notes = [
            f"component {name}: {call.place}, with the inputs that {type(self.module).__name__} passes to it"
        ]
        if numbers:
            notes.append(f"{', '.join(numbers)}: constant in the program")
        if call.again:
            notes.append(
                f"the model calls {call.place} {call.times} times with different inputs; the inputs of the "
                "first call are the example inputs"
            )
        return ExampleInputs(
            kwargs=inputs,
            assumptions=(*self.whole.assumptions, *notes, *self._missing()),
            part=Part(call, fields, {}, numbers={name: buffer_of(whole) for name, whole in of_whole.items()}),
        )

    def _of_rest(self, name: str, encoders: Mapping[str, Call]) -> ExampleInputs:
        others = {role: (call, read_fields(call)) for role, call in encoders.items()}
        model = type(self.module).__name__
        for role, (call, fields) in others.items():
            if not fields:
                raise SourceError(f"{model} calls {call.place} and does not use its result")
            if call.again:
                raise SourceError(
                    f"{model} calls {call.place} ({role}) {call.times} times with different "
                    "inputs, so the rest of the model cannot be a single program"
                )
        whole = self.whole.kwargs
        outside = [call.place for call in encoders.values()]
        read = {name: whole[name] for name in self.run.touched(tensors_of(self.module, whole), outside)}
        unread = {name: value for name, value in whole.items() if name not in read}
        given = {
            f"{role}_{name}": value
            for role, (call, fields) in others.items()
            for name, value in taken(call.result, fields).items()
        }
        note = (
            f"component {name}: {model}, which reads the results of {', '.join(encoders) or 'its encoders'}"
        )
        return replace(
            self.whole,
            kwargs={**read, **given},
            assumptions=(*self.whole.assumptions, note, *self._missing()),
            omitted={},
            is_partial=False,
            call=None,
            part=Part(None, {}, others, tree_map(lambda leaf: Unread(), unread)),
        )

    def _missing(self) -> Iterator[str]:
        for name, reason in self.whole.omitted.items():
            yield f"the model ran without the input {name}, which was not derived: {reason}"

    def _numbers(self, call: Call) -> list[str]:
        """Return the integer arguments of a call that are not settings of a config, as `name=value`."""
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
            f"the parts of {type(module).__name__} cannot be determined because the model does not run "
            f"on its example inputs: {type_and_line(error)}"
        ) from error


def _without(value: Any, passed: set[int]) -> Any:
    """Return an output of the model without stand-ins and without tensors that the caller passed in."""
    if isinstance(value, Mapping):
        kept = {name: _without(item, passed) for name, item in value.items() if not _is_passed(item, passed)}
        return {name: item for name, item in kept.items() if not (isinstance(item, Mapping) and not item)}
    return value


def _is_passed(value: Any, passed: set[int]) -> bool:
    leaves = [leaf for leaf in tree_leaves(value) if leaf is not None]
    return all(isinstance(leaf, Unread) or id(leaf) in passed for leaf in leaves)
