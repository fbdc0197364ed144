"""Trace the first of equal blocks, and make its nodes once more for the others."""

from __future__ import annotations

import logging
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from types import FrameType
from typing import Any

import torch
from torch import nn

from fakexport._torch.block_recordings import NeverReplayable, NotReplayable, Recording, entry_state
from fakexport._torch.block_templates import Template, template_of
from fakexport._torch.copied_values import TraceNeeded, gradients_need_a_trace
from fakexport._torch.global_modes import foreign_mode, global_modes, random_states
from fakexport._torch.module_calls import ModuleCall, around_module_calls, can_be_noted, noted_reads
from fakexport._torch.observed_tensors import tracing_paused
from fakexport._torch.real_execution import real_execution
from fakexport._torch.template_differences import first_template_difference
from fakexport._torch.template_replay import replay
from fakexport.program import is_user_code

from .block_groups import Group, groups_of
from .cache_parts import watching
from .cache_states import CacheStates
from .executed_code import ExecutedCode
from .new_containers import refuse_known_containers
from .noted_code import can_note
from .observed_state import ObservedState, observed_state
from .observed_values import plain_token
from .positions import Choice, Comparison, PositionUses, tells_stand_ins

log = logging.getLogger(__name__)
_MOST_FAILURES = 3
# So many templates may wait for a call that they fit.
_MOST_UNUSED = 4
# So many calls may still meet new code or new operators.
_MOST_WAITS = 6


@dataclass
class _Known:
    """A template, and for which calls it stands.

    Args:
        key, tokens, slots: What such a call can observe.
        unread: Which of the slots it does not use.
        learned: What it found out about those that say where it is.
        template: The template; of the result, and of what it wrote.
        written: What of its caches it wrote.
        unproven: How many calls it answered since one was traced and compared with it.
    """

    key: Any
    tokens: tuple[Any, ...]
    slots: tuple[tuple[str, Any], ...]
    unread: frozenset[int]
    learned: frozenset[Comparison | Choice]
    template: Template
    written: tuple[tuple[int, Any], ...]
    unproven: int = 0

    def fits(self, key: Any, state: ObservedState) -> bool:
        if key != self.key or state.tokens != self.tokens or len(state.slots) != len(self.slots):
            return False
        return all(
            name == slot[0]
            and (at in self.unread or plain_token(value) == plain_token(slot[1]))
            and self._learns(slot, value, state.positions)
            for at, ((_, name, value), slot) in enumerate(zip(state.slots, self.slots, strict=True))
        )

    def _learns(self, slot: tuple[str, Any], value: Any, own: tuple[int, ...]) -> bool:
        """Return whether another value of a slot answers what was asked of it alike."""
        asked = [one for one in self.learned if (one.name, one.position) == slot]
        return not asked or (type(value) is int and all(one.holds_for(value, own) for one in asked))


@dataclass
class _Kind:
    """The blocks of one class."""

    name: str
    code: ExecutedCode = field(default_factory=ExecutedCode)
    known: list[_Known] = field(default_factory=list)
    failures: list[str] = field(default_factory=list)
    is_hopeless: bool = False
    calls: int = 0
    waits: int = 0
    replayed: int = 0

    @property
    def is_given_up(self) -> bool:
        """Whether its calls are not looked at any more: more of them failed than were reused."""
        return self.is_hopeless or len(self.failures) - self.replayed >= _MOST_FAILURES

    @property
    def is_unproven(self) -> bool:
        return any(known.unproven for known in self.known)


class BlockReuse:
    """Answers the calls of equal blocks of one model during one trace.

    Args:
        module: The model.
    """

    def __init__(self, module: nn.Module) -> None:
        self._groups = groups_of(module)
        self._kinds: dict[type, _Kind] = {}
        self._is_busy = False
        self._has_stood_in = False

    @property
    def replayed(self) -> int:
        """How many calls were not traced."""
        return sum(kind.replayed for kind in self._kinds.values())

    @property
    def has_changed(self) -> bool:
        """Whether a call was not traced, or saw what stands for its position: a failure may come of it."""
        return self._has_stood_in or bool(self.replayed)

    @property
    def unproven(self) -> list[str]:
        """The classes of which no late call was compared with what was made for earlier ones."""
        return [kind.name for kind in self._kinds.values() if kind.is_unproven]

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
        needs_proof = group.likes[id(module)].needs_proof(module)
        is_left = kind.is_given_up and not (needs_proof and kind.is_unproven)
        if is_left or not can_note():
            return forward(*args, **kwargs)
        kind.calls += 1
        self._is_busy = True
        try:
            return self._answered(kind, group, tracer, module, forward, args, kwargs, needs_proof)
        finally:
            if self._is_busy:
                self._note_inner_calls(module)
            self._is_busy = False

    def _note_inner_calls(self, module: nn.Module) -> None:
        for inner in module.modules():
            if inner is not module and (group := self._groups.get(id(inner))) is not None:
                group.likes[id(inner)].waiting.discard(id(inner))

    def _answered(
        self,
        kind: _Kind,
        group: Group,
        tracer: Any,
        module: nn.Module,
        forward: ModuleCall,
        args: tuple[Any, ...],
        kwargs: Any,
        needs_proof: bool,
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
            state = observed_state(tracer, module, args, kwargs, kind.code, group.positions)
            if state.caches and any(map(tells_stand_ins, kind.code.found)):
                raise NeverReplayable("it takes a cache and asks for types")
        except Exception as reason:  # Mostly `NotComparable`; or an object that cannot be looked at.
            return self._refused(kind, str(reason), forward, args, kwargs)
        key = (group.shape, _call_site(), global_modes(), entry_state(tracer, module, group.inner))
        call = _Call(kind, group, tracer, module, forward, args, kwargs, state, key)
        known = next((known for known in kind.known if known.fits(key, state)), None)
        likes = group.likes[id(module)]
        if known is None:
            if likes.answered not in (None, call.sizes):
                raise TraceNeeded(f"{kind.name} gets inputs of other sizes, and no late call was compared")
            return self._recorded(call)
        # The trace knows a symbol by the size of the last input that has it, which is that of the last layer.
        is_late = bool(state.caches and state.numbers) and likes.is_one_left
        if needs_proof or is_late:
            return self._proven(call, known)
        kind.replayed += 1
        known.unproven += 1
        likes.answered = call.sizes
        result, written = replay(known.template, tracer, module, state.tensors, state.numbers)
        CacheStates.of(state.caches).write(dict(zip(known.written, written, strict=True)))
        return result

    def _refused(
        self, kind: _Kind, reason: str, forward: ModuleCall, args: Any, kwargs: Any, *, is_final: bool = False
    ) -> Any:
        kind.failures.append(reason)
        kind.is_hopeless |= is_final
        self._is_busy = not kind.is_given_up  # What is inside may be reused instead.
        return forward(*args, **kwargs)

    def _recorded(self, call: _Call) -> Any:
        self._has_stood_in |= bool(call.state.caches)
        result, known = _traced(call)
        if isinstance(known, _Known):
            call.kind.known.append(known)
        elif known is None:
            call.kind.waits += 1  # The next one is compared with all of this in view.
        else:
            call.kind.failures.append(str(known))
            call.kind.is_hopeless |= isinstance(known, NeverReplayable)
        return result

    def _proven(self, call: _Call, known: _Known) -> Any:
        """Trace a call that a template fits, and compare.

        State that no walk can see adds up over the calls, and shows in a late one.

        Raises:
            TraceNeeded: The template would have made something else.
        """
        self._has_stood_in |= bool(call.state.caches)
        if not known.unproven:
            return call.forward(*call.args, **call.kwargs)
        result, traced = _traced(call, is_proof=True)
        if isinstance(traced, _Known):
            difference = first_template_difference(known.template, traced.template)
            if difference is None and not known.unread <= traced.unread | set(call.positions()):
                difference = "attributes that it uses"
            if difference is None and known.written != traced.written:
                difference = "what it writes"
        else:
            difference = "code that it runs" if traced is None else str(traced)
        if difference is not None:
            raise TraceNeeded(f"a late call of {call.kind.name} differs from an earlier one: {difference}")
        known.unproven = 0
        call.group.likes[id(call.module)].answered = None
        return result


@dataclass(frozen=True)
class _Call:
    """A call of a block, and everything that it can observe."""

    kind: _Kind
    group: Group
    tracer: Any
    module: nn.Module
    forward: ModuleCall
    args: tuple[Any, ...]
    kwargs: Any
    state: ObservedState
    key: Any

    @property
    def sizes(self) -> tuple[tuple[str, ...], ...]:
        """Those of the tensors that it is given."""
        with tracing_paused():
            values = (*self.args, *self.kwargs.values())
            return tuple(tuple(map(str, each.shape)) for each in values if isinstance(each, torch.Tensor))

    def positions(self) -> Iterator[int]:
        """Yield which slots say where the block is."""
        for at, (_, name, _) in enumerate(self.state.slots):
            if name in self.group.positions:
                yield at


def _traced(call: _Call, *, is_proof: bool = False) -> tuple[Any, _Known | Exception | None]:
    """Trace a call; return its result, and its template.

    There is an exception instead if the call cannot be made once more, and None if it ran new code or new
    operators.

    Args:
        call: Any call of the kind.
        is_proof: It sees its own positions, and not what stands for them.
    Raises:
        TraceNeeded: It may have told what stands for its position from a number.
    """
    state, kind = call.state, call.kind
    watched = [
        (at, owner, name)
        for at, (owner, name, _) in enumerate(state.slots)
        if name in call.group.differing and can_be_noted(owner, name)
    ]
    known_code = set(kind.code.found)
    with real_execution():
        random_before = random_states()
    recording = Recording(call.tracer, call.module, state.tensors, state.numbers)
    uses, caches = PositionUses(state.positions), CacheStates.of(state.caches)
    stand_ins = {} if is_proof or not state.caches else dict.fromkeys(call.group.positions, uses.stand_in)
    with (
        noted_reads([(owner, name) for _, owner, name in watched], stand_ins) as read,
        watching(state.caches, uses, is_proof=is_proof),
        recording.running(),
        kind.code.noted(),
    ):
        result = call.forward(*call.args, **call.kwargs)
    if stand_ins and (uses.are_kept or any(map(tells_stand_ins, kind.code.found.keys() - known_code))):
        raise TraceNeeded(f"{kind.name} keeps its number, or asks for its type")
    try:
        is_new = set(kind.code.found) != known_code or not recording.is_settled
        if is_new and not recording.faults_of_all:
            return result, None
        with real_execution():
            if random_states() != random_before:
                raise NotReplayable("it draws random numbers in Python")
        if uses.faults:
            raise NotReplayable(uses.faults[0])
        written = caches.written()
        made = result, [*written.values()]
        refuse_known_containers(made, state.identities)
        template = template_of(recording, made)
        with caches.restored(), recording.as_before_writes():
            _check_unchanged(call)
    except Exception as reason:  # Mostly `NotReplayable` and `NotComparable`; the call itself is traced.
        return result, reason
    unread = frozenset(at for at, _, name in watched if name not in read)
    slots = tuple((name, value) for _, name, value in state.slots)
    learned = frozenset(uses.learned)
    return result, _Known(call.key, state.tokens, slots, unread, learned, template, tuple(written))


def _check_unchanged(call: _Call) -> None:
    state = call.state
    after = observed_state(
        call.tracer, call.module, call.args, call.kwargs, call.kind.code, call.group.positions
    )
    is_same = _without_forcing(after.tokens[: after.own]) == _without_forcing(state.tokens[: state.own])
    slots = [[(name, plain_token(value)) for _, name, value in s.slots] for s in (state, after)]
    is_same &= after.moved == state.moved
    if not is_same or slots[0] != slots[1] or _tensors(after) != _tensors(state):
        raise NotReplayable("it changes what it can see")
    if global_modes() != call.key[2]:
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


def _call_site() -> tuple[Any, ...]:
    """Return the lines of the frames that lead to the call, which stack traces show."""
    frame: FrameType | None = sys._getframe(3)
    found = []
    while frame is not None and frame.f_code.co_name != "_non_strict_export":
        if frame.f_code.co_name == "forward" or is_user_code(frame.f_code.co_filename):
            found.append((frame.f_code, frame.f_lineno))
        frame = frame.f_back
    return tuple(found)
