"""Diagnose a failed capture, and further problems that were found by exploring beyond the failure."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable, Iterator
from dataclasses import replace
from pathlib import PurePath
from types import FunctionType

from fakexport._torch.emulation.absent_devices import unreached_device_type
from fakexport._torch.emulation.fake_tensors import is_fake_tensor, storage_identity
from fakexport.emulation.devices import Topology
from fakexport.emulation.fake import UnsupportedSubclassError
from fakexport.exporting.capture import CaptureFailure, Exploration, Problem
from fakexport.exporting.program import is_library_code
from fakexport.report.diagnose.call_repairs import call_repair
from fakexport.report.diagnose.construction import subclass_not_kept
from fakexport.report.diagnose.data_dependence import (
    data_dependent_branch,
    data_dependent_shape,
    data_dependent_value,
    tensor_leaves_torch,
)
from fakexport.report.diagnose.devices import absent_device
from fakexport.report.diagnose.dimensions import (
    dims_must_be_equal,
    dynamic_dims_specialised,
    zero_or_one_examples,
)
from fakexport.report.diagnose.forward_repairs import (
    IN_FLOAT32,
    NO_REPAIR,
    OF_CALL,
    OF_CONFIG,
    empty_setting_repair,
    forward_repair,
    known_repair,
)
from fakexport.report.diagnose.labels import of_failure, place_text
from fakexport.report.diagnose.operators import (
    missing_fake_class,
    missing_fake_kernel,
    module_moved,
    sharding_changes_result,
    tensors_on_different_devices,
    transform_lost,
    unsupported_python,
    write_lost,
)
from fakexport.report.diagnose.repairs import GENERAL, KNOWN_NUMBER, PRECOMPUTED, general_repair
from fakexport.report.diagnose.size_repairs import EVERY_INDEX, is_of_index
from fakexport.rules.diagnostics import Change, Diagnostic, Fix, source_text

Detector = Callable[[CaptureFailure], Diagnostic | tuple[Diagnostic, ...] | None]


def diagnose_failure(
    failure: CaptureFailure,
    exploration: Exploration | None = None,
    *,
    topology: Topology | None = None,
    published: str | None = None,
) -> tuple[Diagnostic, ...]:
    """Return the diagnostics of a failed capture: first the error that stopped it, then further problems.

    Reports:
        FE103, FE201, FE203 to FE206, FE208, FE210, FE301 to FE304, FE401, FE404, FE405, FE502, FE505, FE912
        for known error messages, and FE202 for all others.
    """
    if isinstance(failure.error, UnsupportedSubclassError):
        return (subclass_not_kept(failure.error, failure.spans),)
    found = list(_diagnosed(failure, topology))
    if exploration is not None and exploration.is_eager_fault and found[0].code == "FE202":
        found[0] = _with_eager_fault(found[0], published, exploration.batch_of_one)
    for problem in exploration.problems if exploration else ():
        if _follows_from_assumptions(problem) and absent_device(problem.failure, topology) is None:
            continue
        for diagnostic in _with_assumptions(_diagnosed(problem.failure, topology), problem):
            same = next((i for i, known in enumerate(found) if _is_same(known, diagnostic)), None)
            if same is None:
                found.append(diagnostic)
            else:
                known = found[same]
                fix = diagnostic.fix if problem.failure.call is not None else known.fix
                found[same] = replace(known, count=max(known.count, diagnostic.count), fix=fix)
    inputs = exploration.inputs if exploration is not None else ()
    found = [_with_inputs(_after_loop(each, found), inputs) for each in found]
    return tuple(_with_answer(_with_usual_way(each, exploration), exploration) for each in found)


def _after_loop(found: Diagnostic, others: Iterable[Diagnostic]) -> Diagnostic:
    """Replace the fix of FE201 if fixing the enclosing loop (FE301) also makes the condition known."""
    if found.code != "FE201" or found.fix is None or GENERAL not in found.fix.message or not found.primary:
        return found
    asked = found.primary.span
    for other in others:
        if other.code == "FE301" and other.fix and EVERY_INDEX in other.fix.message and other.primary:
            rows = other.primary.span
            if is_of_index(asked, rows):
                return replace(
                    found, fix=Fix(f"fix line {rows.line} first: this condition is then known during tracing")
                )
    return found


def _with_inputs(found: Diagnostic, inputs: tuple[str, ...]) -> Diagnostic:
    """If a fix adds an input, list the other inputs too, because `--input` replaces all example inputs.

    If no inputs are known, return the general fix instead.
    """
    if found.fix is None or not PRECOMPUTED.match(found.fix.message):
        return found
    if not inputs:
        span = found.primary.span if found.primary is not None else None
        return replace(found, fix=Fix(general_repair(KNOWN_NUMBER, span)))
    others = "".join(f" --input '{spec}'" for spec in inputs)
    return replace(found, fix=Fix(f"{found.fix.message}{others}"))


def _with_usual_way(found: Diagnostic, exploration: Exploration | None) -> Diagnostic:
    """In the fix of FE301, put the assertion that is true for the example inputs first."""
    if found.fix is None or found.primary is None or exploration is None:
        return found
    span = found.primary.span
    answer = next((each.answer for each in exploration.assumptions if each.span == span), None)
    match found.fix.changes:
        case [Change(answer=bool()) as first, Change(answer=bool() as usual) as second] if usual is answer:
            texts = [f"`{each.message.partition('`')[2]}" for each in (first, second)]
            message = found.fix.message.replace(", or ".join(texts), ", or ".join(reversed(texts)))
            return replace(found, fix=replace(found.fix, message=message, changes=(second, first)))
    return found


def _with_answer(found: Diagnostic, exploration: Exploration | None) -> Diagnostic:
    """Add the assumption under which the trace completed to the fix of FE201, FE203 or FE301.

    The assumption is added only if every assumption has a value and no position in the code has two
    values. A specific fix for the user's own code takes precedence.
    """
    if found.code not in _ANSWERED or exploration is None or not exploration.is_complete:
        return found
    assumed = exploration.assumptions
    is_known = all(each.answer is not None for each in assumed)
    if found.primary is None or not is_known or len({each.span for each in assumed}) < len(assumed):
        return found
    span = found.primary.span
    answer = next((each.answer for each in assumed if each.span == span), None)
    if answer is None or found.fix is None:
        return found
    is_general = any(text in found.fix.message for text in (GENERAL, KNOWN_NUMBER))
    if not (is_general or is_library_code(span.path)) or PRECOMPUTED.match(found.fix.message):
        return found
    is_alone = sum((each.span.path, each.span.line) == (span.path, span.line) for each in assumed) == 1
    place = f"{PurePath(span.path).name}:{span.line}" + ("" if is_alone else f":{span.column}")
    option = f"pass `--assume {place}={answer}`"
    shown = f"`{source_text(span) or 'it'}`"
    what, number = f"{answer}", ""
    if not isinstance(answer, bool):
        what, number = "the same number", f" with the correct number instead of {answer}"
    fix = Fix.under(
        f"{shown} is {what} for every input",
        f"{option}{number}: the program then rejects other inputs",
        otherwise=found.fix,
        changes=(Change(assume=(f"{place}={answer}",)),),
    )
    return replace(found, fix=fix)


_ANSWERED = ("FE201", "FE203", "FE301")


def diagnose_assumptions(exploration: Exploration) -> Iterator[str]:
    """Yield a sentence for each assumption of an exploration, and a sentence that says why it ended."""
    for assumption in exploration.assumptions:
        where = place_text(assumption.span)
        yield f"to find further problems, assumed that {assumption.text} at {where}"
    if exploration.limit is not None:
        yield f"tracing stopped after {exploration.limit}; there may be more problems after that"
        return
    if exploration.is_complete:
        return
    last = exploration.problems[-1] if exploration.problems else None
    if last is not None and _follows_from_assumptions(last):
        failure = last.failure
        at = f" at {place_text(failure.spans[-1])}" if failure.spans else ""
        yield (
            f"tracing stopped{at} with {failure.error_types[0]}, which is caused by these "
            "assumptions and not by the model; there may be more problems after it"
        )
    else:
        yield "tracing stopped at the last problem; there may be more problems after it"


def _follows_from_assumptions(problem: Problem) -> bool:
    """Return whether the error that ended a trace is caused by assumptions and not by the model.

    A data-dependent line or an unsupported operator is always a fault of the model. Any other error is
    attributed to the model only if all assumptions are about branches, which some real inputs take.
    """
    if not problem.is_last or not problem.assumptions:
        return False
    failure = problem.failure
    if failure.is_of_symbols and not any("DataDependent" in name for name in failure.error_types):
        return True
    if any(detector(failure) for detector in _DETECTORS):
        return False
    return any(not assumption.is_branch for assumption in problem.assumptions)


def _diagnosed(failure: CaptureFailure, topology: Topology | None) -> tuple[Diagnostic, ...]:
    if (absent := absent_device(failure, topology)) is not None:
        return (absent,)
    for detector in _DETECTORS:
        found = detector(failure)
        if found:
            return found if isinstance(found, tuple) else (found,)
    return (_forward_failed(failure),)


def _with_assumptions(diagnostics: Iterable[Diagnostic], problem: Problem) -> Iterator[Diagnostic]:
    """Yield the diagnostics of a problem, with a note if an assumption may have caused it."""
    for diagnostic in diagnostics:
        notes = diagnostic.notes
        if problem.assumptions and (problem.is_last):
            count, last = len(problem.assumptions), problem.assumptions[-1]
            earlier = f" (the last of {count} assumptions)" if count > 1 else ""
            where = f"{last.text} at {place_text(last.span)}"
            notes += (f"found after assuming that {where}{earlier}; the assumption may be the cause",)
        yield replace(diagnostic, count=problem.count, notes=notes)


def _is_same(known: Diagnostic, other: Diagnostic) -> bool:
    """Return whether two findings have the same rule and line, or the same text if neither has a line."""
    if known.code != other.code:
        return False
    if known.primary is None or other.primary is None:
        return known.primary is other.primary and known.notes[:1] == other.notes[:1]
    first, second = known.primary.span, other.primary.span
    is_exact = first.origin == second.origin == "traceback"
    return (first.path, first.line) == (second.path, second.line) and (
        not is_exact or first.column == second.column
    )


# The order matters: torch raises some of these errors as the cause of others.
_DETECTORS: tuple[Detector, ...] = (
    missing_fake_class,
    missing_fake_kernel,
    tensors_on_different_devices,
    zero_or_one_examples,
    dims_must_be_equal,
    dynamic_dims_specialised,
    tensor_leaves_torch,
    data_dependent_value,
    data_dependent_branch,
    data_dependent_shape,
    transform_lost,
    write_lost,
    sharding_changes_result,
    unsupported_python,
    module_moved,
)


def _forward_failed(failure: CaptureFailure) -> Diagnostic:
    """Report FE202 with the message of torch or of the model."""
    known = known_repair("torch", failure.messages[0])
    if _asks_for_generator(failure):
        known = _WITHOUT_GENERATOR
    known = known or aliased_repair(failure)
    if known is None and "NoneType" in failure.messages[0]:
        known = empty_setting_repair(failure.culprit, failure.culprit_locals)
    repair = known or forward_repair(failure.messages[0])
    changes = (Change(dtype="float32"),) if repair.startswith(IN_FLOAT32) else ()
    fix = call_repair(failure.culprit, failure.culprit_locals) or Fix(repair, changes=changes)
    return of_failure("FE202", failure, failure.error_types[0], fix)


def _with_eager_fault(
    diagnostic: Diagnostic, published: str | None, batch_of_one: tuple[str, ...]
) -> Diagnostic:
    """Return FE202 with a note that eager mode raises the same error.

    A default config does not describe a published model, so the fix is to use a different config, not to
    change the line. Errors about dtypes or missing inputs keep their own fix.
    """
    first, *others = diagnostic.notes or ("the error has no message",)
    fix = diagnostic.fix
    if batch_of_one:
        options = " ".join(f"--input '{spec}'" for spec in batch_of_one)
        changes = (Change(inputs=batch_of_one),)
        fix = Fix(f"eager mode accepts these inputs with a batch of 1: pass {options}", changes=changes)
    elif published is not None and fix and OF_CONFIG.match(fix.message):
        fix = Fix(f"{published}; or {fix.message}")
    elif published is not None and not (fix and OF_CALL.match(fix.message)):
        fix = Fix(published)
    elif fix is None or fix.message == NO_REPAIR:
        fix = _NOT_OF_THE_TRACE
    return replace(diagnostic, notes=(f"eager mode raises the same error: {first}", *others), fix=fix)


_NOT_OF_THE_TRACE = Fix(
    "no fix is known for this error. torch.export is not its cause: correct the model's code, "
    "its config or its inputs (`--input`) so that the marked line runs"
)

_WITHOUT_GENERATOR = (
    "remove `generator=`, or pass the random numbers as an input: an ExportedProgram cannot save "
    "a torch.Generator, and never seeds it again"
)


def _asks_for_generator(failure: CaptureFailure) -> bool:
    """Return whether `torch.Generator(device=...)` failed. In a CUDA build, the error is about the driver."""
    asked = f"{failure.messages[0]} {source_text(failure.culprit) or ''}"
    return unreached_device_type(failure.messages[0]) is not None and "enerator" in asked


_ALIASED = re.compile(r"Input-to-input aliasing detected at nodes (\S+) and (\S+) in")
_WEIGHT = re.compile(r"_(?:parameters|buffers)_(\w+?)_$")


def aliased_repair(failure: CaptureFailure) -> str | None:
    """Return a fix for two operands of `torch.cond` or `torch.while_loop` that share memory."""
    found = next((match for text in failure.messages if (match := _ALIASED.search(text))), None)
    if found is None:
        return None
    weights = [f"self.{match[1]}" for node in found.groups() if (match := _WEIGHT.search(node))]
    names = weights if len(weights) == 2 else list(dict.fromkeys(_sharing(failure)))
    if len(names) < 2:
        return "call `.clone()` on each tensor that a branch or loop body reads, so that no two share memory"
    shown = ", ".join(f"`{name}`" for name in names[:-1]) + f" and `{names[-1]}`"
    return (
        f"copy {shown} with `.clone()` where they are created: they are views of the same tensor, "
        "and the branches or loop body of a control-flow operator cannot read two tensors that share "
        "memory"
    )


def _sharing(failure: CaptureFailure) -> Iterator[str]:
    """Yield names of local tensors that share memory, and that functions defined in the frame read."""
    variables = failure.culprit_locals
    functions = [value for value in variables.values() if isinstance(value, FunctionType)]
    read = {name for function in functions for name in function.__code__.co_freevars}
    memories = {
        name: storage_identity(variables[name])
        for name in sorted(read & variables.keys())
        if is_fake_tensor(variables[name])
    }
    for name, memory in memories.items():
        if list(memories.values()).count(memory) > 1:
            yield name
