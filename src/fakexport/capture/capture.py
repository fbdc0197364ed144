"""Capture a fake module as a program."""

from __future__ import annotations

import logging
from collections.abc import Callable, Mapping, Sequence
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass, replace
from functools import partial
from typing import Any

import torch
from torch import nn
from torch.export import ExportedProgram

from fakexport._torch.data_attribute import data_attribute_traced
from fakexport._torch.decided_branches import DecidedBranches
from fakexport._torch.declared_shapes import why_shapes_do_not_fit
from fakexport._torch.exact_bounds import exact_bounds
from fakexport._torch.exact_modulo import exact_modulo
from fakexport._torch.exact_round import exact_round
from fakexport._torch.export_passes import quick_passes
from fakexport._torch.foreign_fakes import foreign_fakes_join_the_trace
from fakexport._torch.guard_locations import Guard, guards_of_error
from fakexport._torch.lazy_graph_module import lazy_graph_modules
from fakexport._torch.lifted_constants import fold_lifted_moves
from fakexport._torch.node_stack_traces import quick_stack_traces
from fakexport._torch.operator_memo import OperatorMemo, TraceNeeded
from fakexport._torch.patching import traced_here
from fakexport._torch.presented_classes import classes_presented
from fakexport._torch.program_assembly import add_guards
from fakexport._torch.pytree import tree_leaves
from fakexport._torch.remembered_metadata import remembered_metadata
from fakexport._torch.script_objects import hold_real_objects
from fakexport._torch.simplified_sizes import sizes_simplified_once
from fakexport._torch.speed import has_memo, is_fast
from fakexport._torch.trace_end import TraceFinished
from fakexport._torch.tracing_lock import one_at_a_time
from fakexport._torch.unknown_broadcasts import unknown_broadcasts_refused
from fakexport._torch.unsolved_sizes import unsolved_equations_pass
from fakexport._torch.user_frames import name_user_frames
from fakexport._torch.vmap_steps import transform_levels_closed
from fakexport.conditions import always_guards
from fakexport.devices import emulated_topology
from fakexport.diagnostics import Span
from fakexport.error import InvalidValue
from fakexport.fake import SubclassNotKept, check_initialized, unregistered_wrapper
from fakexport.history import remember_value
from fakexport.program import (
    ProgramFacts,
    is_library_code,
    is_model_code,
    is_user_code,
    keep_facts,
    parameters_of,
    with_used_weights,
    with_weight_names,
)

from .absent_devices import failure_of_absent_device
from .assigned_buffers import assigned_buffers_written
from .assumed_answers import AssumedAnswer, AssumedAnswers
from .caught_errors import drop_refused_nodes
from .constant_answers import ConstantAnswers
from .constants import recover_constants
from .declared_bounds import lower_bound_guards, varying_inputs
from .dynamic_dims import DynamicDims, as_torch_shapes
from .failure import CaptureFailure, GuardFact
from .flattening import flattened
from .given_inputs import with_unsupported_input
from .input_questions import InputQuestions
from .kept_masks import KeptMask, kept_masks_of, watch_masks
from .left_fakes import ModelState, fakes_taken_back
from .lost_transforms import TransformLost, refuse_lost_transforms
from .lost_writes import WriteLost, refuse_lost_writes
from .named_state import read_state_by_name
from .plain_forward import plain_forward
from .plain_inputs import prepared_inputs
from .python_effects import PythonEffect, watch_forward
from .rank_layouts import ShardingChangesResult, check_constants, check_rank_layouts
from .recorded_state import with_state
from .recovered import Recovered
from .repeated_calls import refuse_other_later_calls
from .sharded_weights import check_sharded_weights
from .state_dict_hooks import with_load_hooks

log = logging.getLogger(__name__)


@dataclass(frozen=True)
class Captured:
    """A program, or why there is none.

    Args:
        program: The program, or None.
        failure: The failure, or None.
        recovered: What became of the program's constants, or None where there is no program.
        effects: What `forward` did besides computing.
        read_constants: The constants whose values the trace read, so that the program is specialized on them.
        kept_masks: Causal masks that eager mode drops where nothing is padded.
        may_visit_rows: Whether loops may visit every row of a mask instead of those that are set.
    """

    program: ExportedProgram | None
    failure: CaptureFailure | None
    recovered: Recovered | None = None
    effects: tuple[PythonEffect, ...] = ()
    read_constants: tuple[str, ...] = ()
    kept_masks: tuple[KeptMask, ...] = ()
    may_visit_rows: bool = True


@one_at_a_time
def capture(
    module: nn.Module,
    args: tuple[Any, ...],
    kwargs: Mapping[str, Any] | None = None,
    *,
    dynamic: DynamicDims | Any = None,
    strict: bool = False,
    tracing: Callable[[], AbstractContextManager[Any]] | None = None,
    facts: ProgramFacts | None = None,
    assumed: Sequence[AssumedAnswer] = (),
    whole: ExportedProgram | None = None,
) -> Captured:
    """Capture `module` as it is, fake or real, on the devices where it is.

    The caller has entered `devices.emulate` if a device is virtual. The program's outputs are plain
    tuples, lists and dicts. Weights stay what they are: fake weights stay fake. Constants get their values,
    as `recover_constants` says.

    Args:
        module: The module. Its `forward` is replaced while it is traced, and put back.
        args: Positional example inputs.
        kwargs: Keyword example inputs.
        dynamic: `DynamicDims`, or what `torch.export.export(dynamic_shapes=...)` takes, or None.
        strict: Trace with TorchDynamo instead of running the Python code.
        tracing: Makes the context of each trace: what the library of the model needs patched in it.
        facts: What is known before the trace: source, target, placement, assumptions. The program has them,
            with the constants that have no value.
        assumed: Conditions and integers that data decide; the program checks them. Strict mode takes none.
        whole: For a rank of a model: the program of the unsharded model, as `Rank.whole` traces.
    Returns:
        A program or a failure. Whatever the model raises is a failure; nothing is raised for it.
    Raises:
        TypeError: `forward` does not take these inputs.
        ValueError: `dynamic` names what the inputs do not have, or `assumed` nothing that data decide.
        UncheckedAssumption: the program would not check what was assumed.
    """
    args, kwargs, dynamic, restored = prepared_inputs(module, args, kwargs or {}, dynamic)
    known = ProgramFacts() if facts is None else facts
    shapes = torch_shapes(module, args, kwargs, dynamic, known)
    inputs = varying_inputs(module, args, kwargs, known)
    read: dict[str, None] = {}
    answers = AssumedAnswers(assumed, traced.__code__)

    def trace(**options: Any) -> ExportedProgram:
        entered = None if tracing is None else tracing()
        return traced(module, args, kwargs, shapes=shapes, tracing=entered, answers=answers, **options)

    def again() -> Exception | None:
        try:
            with answers.set_aside():
                trace(strict=False, read_constants={})
        except Exception as error:
            return error
        return None

    try:
        check_initialized(module)
        with answers.answered(), restored, watch_masks() as layers:
            state = ModelState(module)
            program = trace(strict=True, read_constants=read) if strict else None
            written = nullcontext() if strict else assigned_buffers_written(module)
            with written, watch_forward(module) as effects:
                if program is None:
                    program = trace(strict=False, read_constants=read, may_remember=True)
                elif (error := again()) is not None:  # TorchDynamo does not run `forward`.
                    effects.add(PythonEffect("unseen", f"{type(error).__name__}: {error}", None))
                refuse_lost_transforms(program)
                read_state_by_name(program)
                refuse_lost_writes(program, effects)
                refuse_other_later_calls(program, module, tuple(effects), state, again)
        add_guards(program, lower_bound_guards(dynamic, inputs, tree_leaves((args, kwargs))))
        program = flattened(program)
        if known.component is not None:
            program = with_used_weights(program)
        if known.adapter is not None:
            program = with_weight_names(program, known.adapter.weights)
        hold_real_objects(program)
        for name, value in fold_lifted_moves(program).items():
            remember_value(program.constants[name], value)
        if known.parallel is not None:
            check_sharded_weights(program, known.parallel)
            assert whole is not None
            check_rank_layouts(program, whole, known.parallel)
    except Exception as error:
        answers.check_answered()
        failure = failure_of(_of_subclass(module, error) or error)
        failure = with_unsupported_input(failure, module, args, kwargs)
        return Captured(None, failure, may_visit_rows=answers.may_visit_rows)
    answers.check(program)
    drop_refused_nodes(program)
    if (absent := failure_of_absent_device(program)) is not None:
        return Captured(None, absent)
    recovered = recover_constants(program)
    try:
        if whole is not None:
            check_constants(program, whole)
    except ShardingChangesResult as error:
        return Captured(None, failure_of(error))
    call = None if known.call is None else with_state(known.call, program)
    parameters = () if known.has_own_inputs else parameters_of(module.forward, args, kwargs)
    facts = replace(known, unbound=recovered.unbound, model=module, call=call, parameters=parameters)
    keep_facts(program, with_load_hooks(facts, module))
    kept_masks = kept_masks_of(module, layers)
    return Captured(program, None, recovered, tuple(effects), tuple(read), kept_masks)


def traced(
    module: nn.Module,
    args: tuple[Any, ...],
    kwargs: Mapping[str, Any],
    *,
    shapes: Any,
    strict: bool,
    tracing: AbstractContextManager[Any] | None,
    read_constants: dict[str, None],
    answers: AssumedAnswers,
    is_specialized: bool = False,
    may_remember: bool = False,
) -> ExportedProgram:
    """Return the program as `torch.export` makes it, with conditions on its inputs that stock torch omits.

    Those are the branches that sizes of 0 and 1 would take otherwise, and inputs that were None. Where stock
    fails and `forward` asked for the value of a constant, it is traced once more with the answers: also where
    the code implied one, since a condition on a constant may be one that always raises. A trace that fails
    in a loop which visits rows that no data may set is made again without.

    Args:
        module, args, kwargs, strict: As for `capture`.
        tracing: Entered around the traces, once.
        read_constants: Gets the names of the constants that were read.
        is_specialized: Give the answers in the first trace already.
        may_remember: Answer repeated operators from a memo. Then nothing else sees each of them.
    Raises:
        Exception: What the model or torch raises.
    """
    with tracing or nullcontext():
        if strict:
            return _traced_once(module, args, kwargs, shapes, True, answers, nullcontext())
        changed: frozenset[str] = frozenset()
        while True:
            constants = ConstantAnswers(module, is_answering=is_specialized, changed=changed)
            try:
                trace = partial(_traced_once, module, args, kwargs, shapes, False, answers)
                is_quick = may_remember and has_memo()
                program = _traced_quickly(trace, constants) if is_quick else trace(constants.given())
            except (Exception, TraceFinished) as error:
                if answers.has_failed_in_rows(error):
                    continue
                if not (constants.found_changed if is_specialized else constants.read):
                    raise
            else:
                if not (
                    constants.found_changed if is_specialized else constants.read and answers.has_implied
                ):
                    read_constants |= constants.read if is_specialized else {}
                    return program
            is_specialized = True
            changed |= constants.found_changed


def _traced_quickly(
    trace: Callable[[AbstractContextManager[None]], ExportedProgram], constants: ConstantAnswers
) -> ExportedProgram:
    """Trace with a memo of operators; again without it if the model asks for gradients or the trace fails."""
    topology = emulated_topology()
    devices = () if topology is None else topology.devices
    profiles = [each.profile for each in devices]
    memo = OperatorMemo(
        {torch.device(each.name): profiles.index(each.profile) for each in devices if each.type != "cpu"}
    )
    try:
        with memo.active():
            return trace(constants.given())
    except TraceNeeded as error:
        log.debug("the model is traced again without the memo of operators: %s", error)
    except Exception as error:
        if not memo.answered:
            raise
        log.debug("the trace failed, and is made again without the memo of operators: %s", error)
    finally:
        log.debug("%d of %d operators answered from memory", memo.answered, memo.answered + memo.computed)
    return trace(constants.given())


def _traced_once(
    module: nn.Module,
    args: tuple[Any, ...],
    kwargs: Mapping[str, Any],
    shapes: Any,
    strict: bool,
    answers: AssumedAnswers,
    constants: AbstractContextManager[None],
) -> ExportedProgram:
    answers.begin()
    decided = DecidedBranches(is_model_code, is_library_code)
    questions = InputQuestions(module)
    with (
        name_user_frames(is_user_code),
        nullcontext() if strict else questions.watched(),
        plain_forward(module, args, kwargs),
        constants,
        foreign_fakes_join_the_trace(),
        transform_levels_closed(),
        exact_bounds(),
        exact_modulo(),
        exact_round(),
        sizes_simplified_once(),
        unsolved_equations_pass(),
        unknown_broadcasts_refused(),
        data_attribute_traced(),
        quick_passes() if is_fast() else nullcontext(),
        quick_stack_traces() if is_fast() else nullcontext(),
        remembered_metadata() if is_fast() else nullcontext(),
        # TorchDynamo reads a field that only generated code sets.
        traced_here() if strict else lazy_graph_modules(),
        # TorchDynamo models `type` itself.
        nullcontext() if strict else classes_presented(is_user_code, module),
        decided.watched(),
        fakes_taken_back(module),
    ):
        program = torch.export.export(module, args, dict(kwargs), dynamic_shapes=shapes, strict=strict)
    answers.check_unanswered()
    asked = questions.guards_of_all(program, args, kwargs) if strict else questions.guards(program)
    add_guards(program, (*always_guards(program), *decided.guards(program), *asked))
    return program


def failure_of(error: BaseException) -> CaptureFailure:
    """Return what an error of `traced` says, with the conditions on sizes that led to it."""
    known = (ShardingChangesResult, WriteLost, TransformLost)
    spans = (error.span,) if isinstance(error, known) and error.span else ()
    return CaptureFailure.of(error, guards=_guards(error), spans=spans)


def torch_shapes(
    module: nn.Module,
    args: tuple[Any, ...],
    kwargs: Mapping[str, Any],
    dynamic: Any,
    facts: ProgramFacts | None = None,
) -> Any:
    """Return what `torch.export.export(dynamic_shapes=...)` takes.

    Raises for a bad call, as `capture` says. The sizes of an adapter do not vary.
    """
    inputs = varying_inputs(module, args, kwargs, facts)
    if isinstance(dynamic, DynamicDims):
        return as_torch_shapes(dynamic, inputs)
    if (fault := why_shapes_do_not_fit(inputs, dynamic)) is not None:
        raise InvalidValue(f"dynamic_shapes does not fit the inputs: {fault}")
    return dynamic


def _of_subclass(module: nn.Module, error: Exception) -> SubclassNotKept | None:
    """Return the error that names the wrapper, where torch's says only that it met a strange tensor."""
    is_unanswered = "Unable to cast NotImplemented to Tensor" in str(error)
    held = unregistered_wrapper(module)
    is_misplaced = isinstance(error, KeyError) or "from fake tensor input" in str(error)
    if not is_unanswered and not (held is not None and is_misplaced):
        return None
    if held is not None:
        reason = "torch.export traces wrappers that are parameters or buffers; register it as a buffer"
        made = SubclassNotKept.of(*held, reason)
    else:
        made = SubclassNotKept(
            "a tensor that forward creates", "tensor subclass", "torch.export cannot trace it"
        )
    made.__cause__ = error
    return made


def _guards(error: BaseException) -> tuple[GuardFact, ...]:
    return tuple(
        GuardFact(guard.expression, guard_span(guard), guard.dims) for guard in guards_of_error(error)
    )


def guard_span(guard: Guard) -> Span | None:
    """Return the user's line that imposed a condition on sizes, where torch kept it."""
    place = next(((p, n, f) for p, n, f in reversed(guard.places) if is_user_code(p)), None)
    return None if place is None else Span(place[0], place[1], function=place[2], origin="guard")
