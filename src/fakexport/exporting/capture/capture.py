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
from torch.fx import Node

from fakexport._torch.emulation.lifted_constants import fold_lifted_moves
from fakexport._torch.patching import traced_here
from fakexport._torch.pytree import tree_leaves
from fakexport._torch.speed.fast_paths import fast_paths
from fakexport._torch.speed.lazy_graph_module import lazy_graph_modules
from fakexport._torch.speed.switch import has_memo, turned_off
from fakexport._torch.tracing.decided_branches import DecidedBranches
from fakexport._torch.tracing.exact_sizes import exact_sizes
from fakexport._torch.tracing.guard_locations import guards_of_error, name_user_frames
from fakexport._torch.tracing.input_shapes import why_shapes_do_not_fit
from fakexport._torch.tracing.operator_faults import TraceFinished
from fakexport._torch.tracing.presented_classes import classes_presented
from fakexport._torch.tracing.program_assembly import add_guards
from fakexport._torch.tracing.script_objects import hold_real_objects
from fakexport._torch.tracing.trace_corrections import corrected_traces
from fakexport._torch.tracing.vmap_steps import transform_levels_closed
from fakexport._torch.tracing_lock import one_at_a_time
from fakexport.emulation.devices import emulated_topology
from fakexport.emulation.fake import UnsupportedSubclassError, check_initialized, unregistered_wrapper
from fakexport.emulation.history import set_constant_value
from fakexport.error import InvalidValue, missing_in_torch, raise_missing
from fakexport.exporting.guards import InputSizes, always_guards
from fakexport.exporting.program import (
    ProgramFacts,
    flattened,
    is_library_code,
    is_model_code,
    is_user_code,
    keep_facts,
    parameters_of,
    source_span,
    with_used_weights,
    with_weight_names,
)
from fakexport.models import DynamicDims

from .assigned_buffers import assigned_buffers_written
from .assumed_answers import AssumedAnswer, AssumedAnswers
from .constant_answers import ConstantAnswers
from .constants import Recovered, recover_constants
from .device_failures import failure_of_devices
from .dynamic_dims import as_torch_shapes, declared_guards, varying_inputs
from .failure import CaptureFailure
from .given_inputs import with_unsupported_input
from .input_questions import InputQuestions
from .left_fakes import ModelState, fakes_taken_back
from .lost_writes import FunctorchError, LostWriteError, refuse_lost_transforms, refuse_lost_writes
from .plain_forward import plain_forward
from .plain_inputs import prepared_inputs
from .python_effects import PythonEffect, watch_forward
from .rank_layouts import (
    ShardingChangesResult,
    check_constants,
    check_rank_layouts,
    check_sharded_weights,
)
from .recorded_state import with_state
from .repeated_calls import check_later_calls
from .state_dict_hooks import with_load_hooks
from .traced_program import drop_refused_nodes, has_lost_result, read_state_by_name

log = logging.getLogger(__name__)


@dataclass(frozen=True)
class Captured:
    """The result of a capture: a program, or the reason why there is none.

    Args:
        program: The program, or None.
        failure: The failure, or None.
        recovered: Which constants of the program have a value. None if there is no program.
        effects: Side effects of `forward`.
        read_constants: Names of the constants whose values the trace read. The program is specialized on
            these values.
        may_visit_rows: Whether a loop over the rows that a mask selects may run over all rows instead.
    """

    program: ExportedProgram | None
    failure: CaptureFailure | None
    recovered: Recovered | None = None
    effects: tuple[PythonEffect, ...] = ()
    read_constants: tuple[str, ...] = ()
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
    """Capture `module`, fake or real, on its current devices.

    Call this within `devices.emulate` if a device is virtual. The program's outputs are plain tuples, lists
    and dicts. Fake weights stay fake. The values of constants are computed; see `recover_constants`.

    Args:
        module: The module. Its `forward` is replaced during the trace and restored afterwards.
        args: Positional example inputs.
        kwargs: Keyword example inputs.
        dynamic: `DynamicDims`, or an argument for `torch.export.export(dynamic_shapes=...)`, or None.
        strict: Trace with TorchDynamo instead of running the Python code.
        tracing: Function that returns a context with the patches that the model's library needs during a
            trace.
        facts: Facts known before the trace: source, target, placement, assumptions. They are attached to the
            program, together with the names of constants that have no value.
        assumed: Assumed values of data-dependent conditions and integers. The program asserts them. Not
            supported in strict mode.
        whole: The program of the unsharded model (`Rank.whole`), if `module` is one rank's shard of a model.
    Returns:
        A program or a failure. Errors of the model become failures and are not raised.
    Raises:
        TypeError: `forward` does not accept these inputs.
        ValueError: `dynamic` does not match the inputs, or `assumed` matches no data-dependent query.
        UncheckedAssumption: the program would not assert an assumption.
    """
    args, kwargs, dynamic, restored = prepared_inputs(module, args, kwargs or {}, dynamic)
    known = ProgramFacts() if facts is None else facts
    inputs = varying_inputs(module, args, kwargs, known)
    shapes = torch_shapes(inputs, dynamic)
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
        with answers.answered(), restored:
            state = ModelState(module)
            program = trace(strict=True, read_constants=read) if strict else None
            written = nullcontext() if strict else assigned_buffers_written(module)
            with written, watch_forward(module) as effects:
                if program is None:
                    program = trace(strict=False, read_constants=read, may_remember=True)
                elif (error := again()) is not None:  # TorchDynamo does not run `forward`.
                    effects[PythonEffect("unseen", f"{type(error).__name__}: {error}", None)] = None
                refuse_lost_transforms(program)
                read_state_by_name(program)
                refuse_lost_writes(program, effects)
                check_later_calls(program, module, effects, state, again)
        add_guards(program, declared_guards(dynamic, inputs, tree_leaves((args, kwargs))))
        program = flattened(program)
        if known.component is not None:
            program = with_used_weights(program)
        if known.adapter is not None:
            program = with_weight_names(program, known.adapter.weights)
        hold_real_objects(program)
        for name, value in fold_lifted_moves(program).items():
            set_constant_value(program.constants[name], value)
        if known.parallel is not None:
            check_sharded_weights(program, known.parallel)
            assert whole is not None
            check_rank_layouts(program, whole, known.parallel)
    except Exception as error:
        raise_missing(error)
        answers.check_answered()
        failure = failure_of(_of_subclass(module, error) or error)
        failure = with_unsupported_input(failure, module, args, kwargs)
        return Captured(None, failure, may_visit_rows=answers.may_visit_rows)
    answers.check(program)
    drop_refused_nodes(program)
    if (misplaced := failure_of_devices(program)) is not None:
        return Captured(None, misplaced)
    recovered = recover_constants(program)
    try:
        if whole is not None:
            check_constants(program, whole)
    except ShardingChangesResult as error:
        return Captured(None, failure_of(error))
    call = None if known.call is None else with_state(known.call, program)
    parameters = () if known.has_own_inputs else parameters_of(module.forward, args, kwargs)
    sizes = InputSizes.of(program).named(known.sizes) if known.sizes else ()
    facts = replace(
        known, unbound=recovered.unbound, model=module, call=call, parameters=parameters, sizes=sizes
    )
    keep_facts(program, with_load_hooks(facts, module))
    return Captured(program, None, recovered, tuple(effects), tuple(read))


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
    """Trace a module with `torch.export`, and add input guards that stock torch omits.

    The guards reject sizes of 0 and 1 that would take a different branch, and check that inputs that were
    None in the trace are None in each call.

    If `forward` reads the value of a constant, and the trace fails or uses a value inferred from the code,
    the model is traced again with the values of its constants. If a trace fails in a loop over all rows of a
    mask, the model is traced again without such loops.

    Args:
        module, args, kwargs, strict: As for `capture`.
        tracing: A context that is entered once around all traces.
        read_constants: Receives the names of the constants that were read.
        is_specialized: Whether the first trace already uses the values of constants.
        may_remember: Whether results of repeated operators may be taken from a memo. If so, fake mode does
            not run every operator, and code that observes fake mode does not see all operators.
    Raises:
        Exception: any error of the model or torch.
    """
    with tracing or nullcontext():
        changed: frozenset[str] = frozenset()
        while True:
            constants = ConstantAnswers(module, is_answering=is_specialized, changed=changed)
            try:
                trace = partial(_traced_once, module, args, kwargs, shapes, strict, answers)
                if strict:
                    return trace(nullcontext())
                is_quick = may_remember and has_memo()
                program = _traced_quickly(trace, constants) if is_quick else trace(constants.given())
            except (Exception, TraceFinished) as error:
                if turned_off(error) or (not strict and answers.has_failed_in_rows(error)):
                    continue
                if strict or not (constants.found_changed if is_specialized else constants.read):
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
    """Trace with the operator memo. If the model inspects autograd or the trace fails, retry without it."""
    from fakexport._torch.speed.operator_memo import OperatorMemo, TraceNeeded

    topology = emulated_topology()
    devices = () if topology is None else topology.devices
    profiles = [each.profile for each in devices]
    memo = OperatorMemo(
        {torch.device(each.name): profiles.index(each.profile) for each in devices if each.type != "cpu"}
    )
    try:
        with memo.active():
            program = trace(constants.given())
        if not has_lost_result(program):
            return program
        log.debug("the trace lost a result; tracing again without the cache of operator results")
    except TraceNeeded as error:
        log.debug("tracing again without the cache of operator results: %s", error)
    except Exception as error:
        if not memo.answered and missing_in_torch(error) is None:
            raise
        log.debug("the trace failed; tracing again without the cache of operator results: %s", error)
    finally:
        log.debug(
            "%d of %d operator results came from the cache", memo.answered, memo.answered + memo.computed
        )
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
        corrected_traces(),
        transform_levels_closed(),
        exact_sizes(),
        fast_paths(),
        # TorchDynamo reads a field that only generated code sets.
        traced_here() if strict else lazy_graph_modules(),
        # TorchDynamo models `type` itself.
        nullcontext() if strict else classes_presented(is_user_code, module),
        decided.watched(),
        fakes_taken_back(module),
        torch.set_grad_enabled(torch.is_grad_enabled()),  # `forward` may leave the other mode.
    ):
        program = torch.export.export(module, args, dict(kwargs), dynamic_shapes=shapes, strict=strict)
    answers.check_unanswered()
    asked = questions.guards_of_all(program, args, kwargs) if strict else questions.guards(program)
    add_guards(program, (*always_guards(program), *decided.guards(program, _file_of), *asked))
    return program


def _file_of(node: Node) -> str | None:
    span = source_span(node)
    return None if span is None else span.path


def failure_of(error: BaseException) -> CaptureFailure:
    """Return the failure for an error of `traced`, with the shape guards that were added before the error."""
    known = (ShardingChangesResult, LostWriteError, FunctorchError)
    spans = (error.span,) if isinstance(error, known) and error.span else ()
    return CaptureFailure.of(error, guards=tuple(guards_of_error(error)), spans=spans)


def torch_shapes(inputs: Mapping[str, Any], dynamic: Any) -> Any:
    """Return an argument for `torch.export.export(dynamic_shapes=...)`.

    Args:
        inputs: The inputs that can have dynamic sizes, from `varying_inputs`.
        dynamic: As for `capture`.
    Raises:
        ValueError: `dynamic` does not match the inputs.
    """
    if isinstance(dynamic, DynamicDims):
        return as_torch_shapes(dynamic, inputs)
    if (fault := why_shapes_do_not_fit(inputs, dynamic)) is not None:
        raise InvalidValue(f"dynamic_shapes does not match the inputs: {fault}")
    return dynamic


def _of_subclass(module: nn.Module, error: Exception) -> UnsupportedSubclassError | None:
    """Return an error that names the wrapper subclass at fault, or None if `error` has a different cause."""
    is_unanswered = "Unable to cast NotImplemented to Tensor" in str(error)
    held = unregistered_wrapper(module)
    is_misplaced = isinstance(error, KeyError) or "from fake tensor input" in str(error)
    if not is_unanswered and not (held is not None and is_misplaced):
        return None
    if held is not None:
        reason = "torch.export supports this class only for parameters and buffers; register it as a buffer"
        made = UnsupportedSubclassError.of(*held, reason)
    else:
        made = UnsupportedSubclassError(
            "a tensor that forward creates", "tensor subclass", "torch.export cannot trace it"
        )
    made.__cause__ = error
    return made
