"""Detect data-dependent values, sizes and control flow: FE201, FE203, FE204, FE205, FE301."""

from __future__ import annotations

import re

from fakexport._torch.tracing.trace_corrections import UNKNOWN_BROADCAST
from fakexport.exporting.capture import CaptureFailure
from fakexport.report.diagnose.call_repairs import call_repair
from fakexport.report.diagnose.labels import marked, of_failure
from fakexport.report.diagnose.repairs import branch_repair, index_repair, number_repair
from fakexport.report.diagnose.size_repairs import size_repair
from fakexport.rules.diagnostics import Diagnostic, Fix, condition_at, is_loop_test, source_text

_GUARD = re.compile(
    r"Could not guard on data-dependent expression (?P<expression>.+?) \(unhinted.*?"
    r"\(Size-like symbols: (?P<sizes>[^)]*)\)",
    re.DOTALL,
)
_NUMBER = re.compile(
    r"Could not extract specialized (?:integer|float|number|bool)\w* from data-dependent expression "
    r"(?P<expression>.+?) \(unhinted.*?\(Size-like symbols: (?P<sizes>[^)]*)\)",
    re.DOTALL,
)
_BRANCH = re.compile(r"Data-dependent branching|Dynamic control flow is not supported|DYNAMIC_CONTROL_FLOW")
_ASSERTED = re.compile(r"Data-dependent assertion|Failed to trace .* assert", re.IGNORECASE)


_NUMPY = re.compile(r"\.numpy\(\) is not supported for tensor subclasses|Can't call numpy\(\) on")
# Errors of Python functions, not operators, that received a symbolic number: `f"{x.item():.2f}"`.
_TRACED_NUMBER = re.compile(
    r"\bSym(?:Int|Float|Bool)\b|^'(?:u|zuf)\d+'$|type must be tuple of ints,\s?but got FakeTensor"
    r"|maximum\(\) missing|minimum\(\) missing"
)
# When a tensor is indexed with a sequence of 0-d tensors, torch bypasses the fake kernels to read them. The
# first message is raised for CPU tensors, the second for GPU tensors.
_READ_IN_INDEX = re.compile(r"data is not allocated yet|could not find kernel for aten\._local_scalar_dense")
# A CUDA build without a GPU checks for the driver first, so its message does not mention the index.
_READ_BY_CUDA_BUILD = re.compile(r"Found no NVIDIA driver")
_REFUSALS = ("TypeError", "KeyError", "ValueError")


def tensor_leaves_torch(failure: CaptureFailure) -> Diagnostic | None:
    """Report FE205: `forward` converts a tensor to NumPy."""
    if not any(_NUMPY.search(text) for text in failure.messages):
        return None
    fix = Fix("compute it with torch operators, or wrap it in a custom operator with a fake kernel")
    return of_failure("FE205", failure, "converting this tensor to NumPy requires its data", fix)


def data_dependent_value(failure: CaptureFailure) -> Diagnostic | None:
    """Report FE203: Python needs a number that depends on tensor values."""
    known = call_repair(failure.culprit, failure.culprit_locals)
    if failure.messages[0].startswith("unhashable type"):
        known = Fix(
            "look the value up in a tensor, `torch.tensor(values)[index]`; if the key is a size, "
            "declare the dimension static: a dictionary key must be a concrete number"
        )
    is_index = _is_read_index(failure, _READ_IN_INDEX)
    may_be = is_index or _is_read_index(failure, _READ_BY_CUDA_BUILD)
    if may_be and (repair := index_repair(failure.culprit, failure.culprit_locals)):
        return of_failure("FE203", failure, "indexing reads the values of these tensors", repair)
    is_listed = known is not None and bool(_READ_IN_INDEX.search(failure.messages[0]))
    reads_output = is_index or is_listed or "DataDependentOutputException" in failure.error_types
    reads_output &= condition_at(failure.culprit) is None
    number = _found(_NUMBER, failure)
    is_refused = failure.error_types[0] in _REFUSALS and bool(_TRACED_NUMBER.search(failure.messages[0]))
    if not (reads_output or is_refused) and (number is None or number["sizes"] != "none"):
        return None
    fix = known or number_repair(failure.culprit)
    return of_failure("FE203", failure, f"Python needs the value of {marked(failure)}", fix)


def data_dependent_branch(failure: CaptureFailure) -> Diagnostic | None:
    """Report FE201 for a branch on tensor data; FE204 if it controls a loop."""
    guard = _found(_GUARD, failure)
    is_branch = any(_BRANCH.search(text) or _ASSERTED.search(text) for text in failure.messages)
    is_branch |= "DataDependentOutputException" in failure.error_types
    if not is_branch and (guard is None or guard["sizes"] != "none"):
        return None
    message = f"the value of {marked(failure)} is unknown during tracing"
    if failure.culprit is not None and is_loop_test(failure.culprit):
        fix = Fix("run a fixed number of iterations with `torch.where`, or use `torch.while_loop`")
        return of_failure("FE204", failure, message, fix)
    fix = call_repair(failure.culprit, failure.culprit_locals) or branch_repair(failure.culprit)
    return of_failure("FE201", failure, message, fix)


def data_dependent_shape(failure: CaptureFailure) -> Diagnostic | None:
    """Report FE301: the trace needs a concrete size that depends on data."""
    if any(text.startswith(UNKNOWN_BROADCAST) for text in failure.messages):
        fix = Fix(
            "before the slice, assert that the sliced tensor is not empty: "
            "`torch._check(rows.shape[0] > 0)`; torch cannot infer a bound from `!= 0`"
        )
        return of_failure("FE301", failure, "torch must know whether this size is 1", fix)
    # In torch 2.11, the message contains the number of parts instead of the guard.
    guard = _found(_GUARD, failure) or _found(_NUMBER, failure)
    if guard is None and "DynamicOutputShapeException" not in failure.error_types:
        return None
    asked = f" ({guard['expression']})" if guard else ""
    message = f"{marked(failure)} requires a concrete size{asked}"
    place = failure.culprit, failure.culprit_locals
    return of_failure("FE301", failure, message, call_repair(*place) or size_repair(*place))


def _is_read_index(failure: CaptureFailure, said: re.Pattern[str]) -> bool:
    text = (source_text(failure.culprit) or "").partition(" = ")[0]
    return text.endswith("]") and bool(said.search(failure.messages[0]))


def _found(pattern: re.Pattern[str], failure: CaptureFailure) -> re.Match[str] | None:
    return next((match for text in failure.messages if (match := pattern.search(text))), None)
