"""Diagnose a model whose construction failed: FE101 to FE103, FE505."""

from __future__ import annotations

import re

from fakexport.emulation.devices import Topology
from fakexport.emulation.fake import UnsupportedSubclassError
from fakexport.emulation.history import DataReadError
from fakexport.exporting.capture import user_spans
from fakexport.models.sources import how_to_install, is_of_default_config
from fakexport.report.diagnose.devices import absent_device_in_constructor
from fakexport.report.diagnose.forward_repairs import construction_repair
from fakexport.report.diagnose.labels import labels_at
from fakexport.rules import rule
from fakexport.rules.diagnostics import Diagnostic, Fix, Span


def diagnose_build(
    error: BaseException, *, topology: Topology | None = None, published: str | None = None
) -> Diagnostic:
    """Return the diagnostic for a constructor that raised.

    Reports:
        FE101 if the constructor reads a value that cannot be computed without data, FE103 for an unsupported
            tensor subclass, FE505 for a device that does not exist, and FE102 for any other error.
    """
    spans = user_spans(error)
    if isinstance(error, UnsupportedSubclassError):
        return subclass_not_kept(error, spans)
    if (refused := _REFUSED_CLASS.search(str(error))) is not None:
        return subclass_not_kept(UnsupportedSubclassError("a tensor", refused[1], _NO_DATA), spans)
    read = _unreplayable(error)
    if read is not None:
        return rule("FE101").diagnostic(
            labels=labels_at(_last(user_spans(read)) or _last(spans), "this line reads a value"),
            notes=tuple(str(read).splitlines()),
        )
    absent = absent_device_in_constructor(error, _last(spans), topology)
    if absent is not None:
        return absent
    other = how_to_install(error) or (published if is_of_default_config(error) else None)
    return rule("FE102").diagnostic(
        labels=labels_at(_last(spans), type(error).__name__),
        notes=(f"{type(error).__name__}: {_KERNELS.sub('', str(error))}", *getattr(error, "__notes__", ())),
        fix=Fix(other or construction_repair(f"{error}")),
    )


# If a backend has no kernel for an operator, torch appends a list of 40 lines to the error message.
_KERNELS = re.compile(r"\n\w+: (?:fallthrough )?registered at .*")
_REFUSED_CLASS = re.compile(r"^Creating a new Tensor subclass (\w+) but the raw Tensor object is already ")
_NO_DATA = "the subclass wraps an existing tensor and has no `__tensor_flatten__`"


def subclass_not_kept(error: UnsupportedSubclassError, spans: tuple[Span, ...] = ()) -> Diagnostic:
    """Return FE103 for a tensor subclass, with the tensor's name, its class and the reason."""
    return rule("FE103").diagnostic(
        labels=labels_at(
            error.span or _last(spans), f"this tensor is a {error.class_name.rpartition('.')[2]}"
        ),
        notes=(str(error),),
        fix=next((Fix(text) for name, text in _FIXES.items() if error.class_name.endswith(name)), None),
    )


_UNINITIALIZED = (
    "call the model once with the example inputs before the factory returns it, `model(*args)`: "
    "lazy modules create their parameters during the first call"
)
_NOT_DISTRIBUTED = (
    "pass a factory that returns the module without calling `parallelize_module`, and pass the plan "
    "separately: `fe.export(factory, parallel='tp=N', parallel_plan=plan)`; for an hf: model, "
    "`--parallel tp=N` uses the model's own plan"
)
_FIXES = {
    "DTensor": _NOT_DISTRIBUTED,
    "UninitializedParameter": _UNINITIALIZED,
    "UninitializedBuffer": _UNINITIALIZED,
}


def _unreplayable(error: BaseException | None) -> DataReadError | None:
    while error is not None and not isinstance(error, DataReadError):
        error = error.__cause__ or error.__context__
    return error


def _last(spans: tuple[Span, ...]) -> Span | None:
    return spans[-1] if spans else None
