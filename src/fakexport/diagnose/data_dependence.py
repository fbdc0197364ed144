"""Detect data-dependent values, sizes and control flow: FE201, FE203, FE204, FE205, FE301."""

from __future__ import annotations

import re

from fakexport._torch.unknown_broadcasts import UNKNOWN_BROADCAST
from fakexport.capture import CaptureFailure
from fakexport.diagnose.call_repairs import call_repair
from fakexport.diagnose.labels import of_failure
from fakexport.diagnose.repairs import branch_repair, index_repair, number_repair
from fakexport.diagnose.size_repairs import size_repair
from fakexport.diagnostics import Diagnostic, Fix, is_loop_test, is_test, source_text

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
# What a function says that is not an operator and got a number of the trace: `f"{x.item():.2f}"`.
_TRACED_NUMBER = re.compile(
    r"\bSym(?:Int|Float|Bool)\b|^'(?:u|zuf)\d+'$|type must be tuple of ints,\s?but got FakeTensor"
    r"|maximum\(\) missing|minimum\(\) missing"
)
# An index that is a sequence of 0-d tensors: torch reads each past the fake kernels. On a CPU, and on a GPU.
_READ_IN_INDEX = re.compile(r"data is not allocated yet|could not find kernel for aten\._local_scalar_dense")
# A CUDA build without a GPU asks for the driver first, which says nothing about the index.
_READ_BY_CUDA_BUILD = re.compile(r"Found no NVIDIA driver")
_REFUSALS = ("TypeError", "KeyError", "ValueError")


def tensor_leaves_torch(failure: CaptureFailure) -> Diagnostic | None:
    """Report FE205: NumPy needs the data."""
    if not any(_NUMPY.search(text) for text in failure.messages):
        return None
    fix = Fix("compute it with torch operators, or wrap it in a custom operator with a fake kernel")
    return of_failure("FE205", failure, "NumPy needs the data of this tensor", fix)


def data_dependent_value(failure: CaptureFailure) -> Diagnostic | None:
    """Report FE203: Python needs a number."""
    known = call_repair(failure.culprit, failure.culprit_locals)
    if failure.messages[0].startswith("unhashable type"):
        known = Fix(
            "look it up in a tensor, `torch.tensor(values)[index]`; or declare the dimension static, if the "
            "key is a size: a key of a dictionary is one number"
        )
    is_index = _is_read_index(failure, _READ_IN_INDEX)
    may_be = is_index or _is_read_index(failure, _READ_BY_CUDA_BUILD)
    if may_be and (repair := index_repair(failure.culprit, failure.culprit_locals)):
        return of_failure("FE203", failure, "torch reads the numbers of this index", repair)
    is_listed = known is not None and bool(_READ_IN_INDEX.search(failure.messages[0]))
    reads_output = is_index or is_listed or "DataDependentOutputException" in failure.error_types
    reads_output &= not _is_test(failure)
    number = _found(_NUMBER, failure)
    is_refused = failure.error_types[0] in _REFUSALS and bool(_TRACED_NUMBER.search(failure.messages[0]))
    if not (reads_output or is_refused) and (number is None or number["sizes"] != "none"):
        return None
    expression = source_text(failure.culprit)
    fix = known or number_repair(failure.culprit)
    message = f"Python needs the value of `{expression}`" if expression else "here"
    return of_failure("FE203", failure, message, fix)


def data_dependent_branch(failure: CaptureFailure) -> Diagnostic | None:
    """Report FE201: Python asks a tensor whether it is true; FE204: it is the condition of a loop."""
    guard = _found(_GUARD, failure)
    is_branch = any(_BRANCH.search(text) or _ASSERTED.search(text) for text in failure.messages)
    is_branch |= "DataDependentOutputException" in failure.error_types
    if not is_branch and (guard is None or guard["sizes"] != "none"):
        return None
    expression = source_text(failure.culprit)
    message = f"`{expression}` has no value while the model is traced" if expression else "the branch is here"
    if failure.culprit is not None and is_loop_test(failure.culprit):
        fix = Fix("run a fixed number of iterations with `torch.where`, or use `torch.while_loop`")
        return of_failure("FE204", failure, message, fix)
    fix = call_repair(failure.culprit, failure.culprit_locals) or branch_repair(failure.culprit)
    return of_failure("FE201", failure, message, fix)


def data_dependent_shape(failure: CaptureFailure) -> Diagnostic | None:
    """Report FE301: the capture must know a size."""
    if any(text.startswith(UNKNOWN_BROADCAST) for text in failure.messages):
        fix = Fix(
            "state before the slice that there is a row, with the size of what is sliced: "
            "`torch._check(rows.shape[0] > 0)`. `!= 0` is not enough for torch"
        )
        return of_failure("FE301", failure, "this size has to be known to be 1", fix)
    guard = _found(_GUARD, failure) or _found(_NUMBER, failure)  # Torch 2.11 asks for the number of parts.
    if guard is None and "DynamicOutputShapeException" not in failure.error_types:
        return None
    expression = source_text(failure.culprit)
    asked = f" ({guard['expression']})" if guard else ""
    message = f"`{expression}` needs to know the size{asked}" if expression else "here"
    place = failure.culprit, failure.culprit_locals
    return of_failure("FE301", failure, message, call_repair(*place) or size_repair(*place))


def _is_read_index(failure: CaptureFailure, said: re.Pattern[str]) -> bool:
    text = (source_text(failure.culprit) or "").partition(" = ")[0]
    return text.endswith("]") and bool(said.search(failure.messages[0]))


def _is_test(failure: CaptureFailure) -> bool:
    return failure.culprit is not None and is_test(failure.culprit)


def _found(pattern: re.Pattern[str], failure: CaptureFailure) -> re.Match[str] | None:
    return next((match for text in failure.messages if (match := pattern.search(text))), None)
