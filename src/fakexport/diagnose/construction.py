"""From a failed construction to a diagnostic: FE101 to FE103, FE505."""

from __future__ import annotations

import re

from fakexport.capture import user_spans
from fakexport.devices import Topology
from fakexport.diagnose.devices import absent_device_in_constructor
from fakexport.diagnose.forward_repairs import construction_repair
from fakexport.diagnose.labels import labels_at
from fakexport.diagnostics import Diagnostic, Fix, Span
from fakexport.fake import SubclassNotKept
from fakexport.history import UnreplayableRead
from fakexport.rules import rule
from fakexport.sources import how_to_install, is_of_default_config


def diagnose_build(
    error: BaseException, *, topology: Topology | None = None, published: str | None = None
) -> Diagnostic:
    """Return the diagnostic of a constructor that raised.

    Reports:
        FE101 where a value was read that cannot be computed without data, FE103 where a tensor subclass
        cannot be kept, FE505 where a device does not exist, else FE102.
    """
    spans = user_spans(error)
    if isinstance(error, SubclassNotKept):
        return subclass_not_kept(error, spans)
    if (refused := _REFUSED_CLASS.search(str(error))) is not None:
        return subclass_not_kept(SubclassNotKept("a tensor", refused[1], _NO_DATA), spans)
    read = _unreplayable(error)
    if read is not None:
        return rule("FE101").diagnostic(
            labels=labels_at(_last(user_spans(read)) or _last(spans), "this value is read"),
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


# What torch lists where a backend has no kernel: 40 lines.
_KERNELS = re.compile(r"\n\w+: (?:fallthrough )?registered at .*")
_REFUSED_CLASS = re.compile(r"^Creating a new Tensor subclass (\w+) but the raw Tensor object is already ")
_NO_DATA = "it is created from an existing tensor, and is not a wrapper with `__tensor_flatten__`"


def subclass_not_kept(error: SubclassNotKept, spans: tuple[Span, ...] = ()) -> Diagnostic:
    """Report FE103, which names the tensor, its class and the reason."""
    return rule("FE103").diagnostic(
        labels=labels_at(error.span or _last(spans), f"here: {error.class_name.rpartition('.')[2]}"),
        notes=(str(error),),
        fix=next((Fix(text) for name, text in _FIXES.items() if error.class_name.endswith(name)), None),
    )


_UNINITIALIZED = (
    "call the model once with the example inputs before the factory returns it, `model(*args)`: the first "
    "call gives lazy modules their parameters"
)
_NOT_DISTRIBUTED = (
    "pass a factory of the module before `parallelize_module`, and its plan: "
    "`fe.export(factory, parallel='tp=N', parallel_plan=plan)`; an hf: model has one, for `--parallel tp=N`"
)
_FIXES = {
    "DTensor": _NOT_DISTRIBUTED,
    "UninitializedParameter": _UNINITIALIZED,
    "UninitializedBuffer": _UNINITIALIZED,
}


def _unreplayable(error: BaseException | None) -> UnreplayableRead | None:
    while error is not None and not isinstance(error, UnreplayableRead):
        error = error.__cause__ or error.__context__
    return error


def _last(spans: tuple[Span, ...]) -> Span | None:
    return spans[-1] if spans else None
