"""Trace the first of equal blocks, and make its nodes once more for the others."""

from __future__ import annotations

import logging
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from types import FrameType
from typing import Any

from torch import nn

from fakexport._torch.block_recordings import NotReplayable, Recording, entry_state
from fakexport._torch.block_templates import Template, template_of
from fakexport._torch.copied_values import gradients_need_a_trace
from fakexport._torch.global_modes import foreign_mode, global_modes, random_states
from fakexport._torch.module_calls import ModuleCall, around_module_calls, can_be_noted, noted_reads
from fakexport._torch.real_execution import real_execution
from fakexport._torch.template_replay import replay
from fakexport.program import is_user_code

from .executed_code import ExecutedCode
from .new_containers import refuse_known_containers
from .observed_state import ObservedState, observed_state
from .observed_values import plain_token

log = logging.getLogger(__name__)
# So many blocks of a kind are worth the look: two of them are traced in any case.
_FEWEST = 4
_MOST_FAILURES = 3
# So many templates may wait for a call that they fit.
_MOST_UNUSED = 4
# So many calls may still meet new code or new operators.
_MOST_WAITS = 6


@dataclass
class _Known:
    """A template, and for which calls it stands."""

    key: Any
    tokens: tuple[Any, ...]
    slots: tuple[tuple[str, Any], ...]
    unread: frozenset[int]
    template: Template

    def fits(self, key: Any, state: ObservedState) -> bool:
        if key != self.key or state.tokens != self.tokens or len(state.slots) != len(self.slots):
            return False
        return all(
            name == slot[0] and (at in self.unread or plain_token(value) == plain_token(slot[1]))
            for at, ((_, name, value), slot) in enumerate(zip(state.slots, self.slots, strict=True))
        )


@dataclass
class _Kind:
    """The blocks of one class."""

    name: str
    code: ExecutedCode = field(default_factory=ExecutedCode)
    known: list[_Known] = field(default_factory=list)
    failures: list[str] = field(default_factory=list)
    calls: int = 0
    waits: int = 0
    replayed: int = 0

    @property
    def is_given_up(self) -> bool:
        return len(self.failures) >= _MOST_FAILURES


class BlockReuse:
    """Answers the calls of equal blocks of one model during one trace.

    Args:
        module: The model.
    """

    def __init__(self, module: nn.Module) -> None:
        self._groups = _groups(module)
        self._kinds: dict[type, _Kind] = {}
        self._is_busy = False

    @property
    def replayed(self) -> int:
        """How many calls were not traced."""
        return sum(kind.replayed for kind in self._kinds.values())

    def report(self) -> dict[str, tuple[int, int, tuple[str, ...]]]:
        """Return calls, calls that were not traced, and what stood against it, by class."""
        return {k.name: (k.calls, k.replayed, tuple(k.failures)) for k in self._kinds.values()}

    @contextmanager
    def active(self) -> Iterator[None]:
        """Enter the context around a non-strict export."""
        if self._groups:
            with around_module_calls(self._answer), gradients_need_a_trace():
                yield
        else:
            yield
        for kind in self._kinds.values():
            log.debug("%s: %d of %d calls reused; %s", kind.name, kind.replayed, kind.calls, kind.failures)

    def _answer(
        self, tracer: Any, module: nn.Module, forward: ModuleCall, args: tuple[Any, ...], kwargs: Any
    ) -> Any:
        group = self._groups.get(id(module))
        if self._is_busy or group is None:
            return forward(*args, **kwargs)
        kind = self._kinds.setdefault(type(module), _Kind(type(module).__qualname__))
        if kind.is_given_up or sys.getprofile() is not None:
            return forward(*args, **kwargs)
        kind.calls += 1
        self._is_busy = True
        try:
            return self._answered(kind, group, tracer, module, forward, args, kwargs)
        finally:
            self._is_busy = False

    def _answered(
        self,
        kind: _Kind,
        group: _Group,
        tracer: Any,
        module: nn.Module,
        forward: ModuleCall,
        args: tuple[Any, ...],
        kwargs: Any,
    ) -> Any:
        if not kind.code.found:
            with kind.code.noted():
                return forward(*args, **kwargs)
        if (suspicion := kind.code.suspicion()) is not None:
            return self._refused(kind, suspicion, forward, args, kwargs, is_final=True)
        if len(kind.known) - kind.replayed >= _MOST_UNUSED or kind.waits - kind.replayed >= _MOST_WAITS:
            return self._refused(kind, "its calls differ", forward, args, kwargs, is_final=True)
        if (mode := foreign_mode()) is not None:
            return self._refused(kind, f"the mode {mode}", forward, args, kwargs)
        try:
            state = observed_state(tracer, module, args, kwargs, kind.code)
        except Exception as reason:  # Mostly `NotComparable`; or an object that cannot be looked at.
            return self._refused(kind, str(reason), forward, args, kwargs)
        key = (group.shape, _call_site(), global_modes(), entry_state(tracer, module))
        for known in kind.known:
            if known.fits(key, state):
                kind.replayed += 1
                return replay(known.template, tracer, module, state.tensors, state.numbers)
        return self._recorded(kind, group, tracer, module, forward, args, kwargs, state, key)

    def _refused(
        self, kind: _Kind, reason: str, forward: ModuleCall, args: Any, kwargs: Any, *, is_final: bool = False
    ) -> Any:
        kind.failures += [reason] * (_MOST_FAILURES if is_final else 1)
        self._is_busy = not kind.is_given_up  # What is inside may be reused instead.
        return forward(*args, **kwargs)

    def _recorded(
        self,
        kind: _Kind,
        group: _Group,
        tracer: Any,
        module: nn.Module,
        forward: ModuleCall,
        args: Any,
        kwargs: Any,
        state: ObservedState,
        key: Any,
    ) -> Any:
        watched = [
            (at, owner, name)
            for at, (owner, name, _) in enumerate(state.slots)
            if name in group.differing and can_be_noted(owner, name)
        ]
        known_code = set(kind.code.found)
        with real_execution():
            random_before = random_states()
        recording = Recording(tracer, module, state.tensors, state.numbers)
        with (
            noted_reads([(owner, name) for _, owner, name in watched]) as read,
            recording.running(),
            kind.code.noted(),
        ):
            result = forward(*args, **kwargs)
        try:
            if set(kind.code.found) != known_code or not recording.is_settled:
                kind.waits += 1
                return result  # The next one is compared with all of this in view.
            with real_execution():
                if random_states() != random_before:
                    raise NotReplayable("it draws random numbers in Python")
            refuse_known_containers(result, state.identities)
            template = template_of(recording, result)
            self._check_unchanged(state, tracer, module, args, kwargs, kind, key)
            unread = frozenset(at for at, _, name in watched if name not in read)
            slots = tuple((name, value) for _, name, value in state.slots)
            kind.known.append(_Known(key, state.tokens, slots, unread, template))
        except Exception as reason:  # Mostly `NotReplayable` and `NotComparable`; the call itself is traced.
            kind.failures.append(str(reason))
        return result

    def _check_unchanged(
        self,
        state: ObservedState,
        tracer: Any,
        module: nn.Module,
        args: Any,
        kwargs: Any,
        kind: _Kind,
        key: Any,
    ) -> None:
        after = observed_state(tracer, module, args, kwargs, kind.code)
        is_same = _without_forcing(after.tokens[: after.own]) == _without_forcing(state.tokens[: state.own])
        slots = [[(name, plain_token(value)) for _, name, value in s.slots] for s in (state, after)]
        if not is_same or slots[0] != slots[1] or _tensors(after) != _tensors(state):
            raise NotReplayable("it changes what it can see")
        if global_modes() != key[2]:
            raise NotReplayable("it changes a mode of torch")


def _tensors(state: ObservedState) -> list[int]:
    return [id(tensor) for tensor in state.tensors]


def _without_forcing(tokens: tuple[Any, ...]) -> list[Any]:
    """Leave out which sizes have a node by now: the template does that again."""
    return [
        token for token in tokens if not (isinstance(token, tuple) and len(token) == 4 and _is_size(token))
    ]


def _is_size(token: tuple[Any, ...]) -> bool:
    return isinstance(token[0], type) and token[0].__name__ in ("SymInt", "SymFloat", "SymBool")


@dataclass(frozen=True)
class _Group:
    """Blocks with the same classes at the same places.

    Args:
        shape: The same object for all of them.
        differing: Names of plain attributes that are not the same in all of them.
    """

    shape: Any
    differing: frozenset[str]


def _groups(model: nn.Module) -> dict[int, _Group]:
    """Return the group of each block that has enough others like it, by `id`."""
    members: dict[Any, list[nn.Module]] = {}
    shapes: dict[int, Any] = {}
    for module in model.modules():
        if any(True for _ in module.children()):
            members.setdefault(_shape(module, shapes), []).append(module)
    found: dict[int, _Group] = {}
    for shape, modules in members.items():
        if len(modules) >= _FEWEST:
            group = _Group(shape, _differing(modules))
            found.update({id(module): group for module in modules})
    return found


def _shape(module: nn.Module, known: dict[int, Any]) -> Any:
    found = known.get(id(module))
    if found is None:
        children = tuple((name, _shape(child, known)) for name, child in module.named_children())
        found = known[id(module)] = (type(module), children)
    return found


def _differing(modules: list[nn.Module]) -> frozenset[str]:
    found: set[str] = set()
    first = list(modules[0].modules())
    for module in modules[1:]:
        for one, other in zip(first, module.modules(), strict=False):
            mine, theirs = vars(one), vars(other)
            for name in mine.keys() & theirs.keys():
                a, b = mine[name], theirs[name]
                if isinstance(a, (bool, int, float, str, type(None))) and (type(a) is not type(b) or a != b):
                    found.add(name)
    return frozenset(found)


def _call_site() -> tuple[Any, ...]:
    """Return the lines of the frames that lead to the call, which stack traces show."""
    frame: FrameType | None = sys._getframe(3)
    found = []
    while frame is not None and frame.f_code.co_name != "_non_strict_export":
        if frame.f_code.co_name == "forward" or is_user_code(frame.f_code.co_filename):
            found.append((frame.f_code, frame.f_lineno))
        frame = frame.f_back
    return tuple(found)
