"""From a failed capture to a diagnostic."""

from __future__ import annotations

import re
from collections.abc import Callable

from fakexport.capture import CaptureFailure
from fakexport.diagnose.data_dependence import (
    data_dependent_branch,
    data_dependent_shape,
    data_dependent_value,
)
from fakexport.diagnose.dimensions import dynamic_dim_specialised
from fakexport.diagnose.labels import labels_of, torch_says
from fakexport.diagnose.operators import missing_fake_kernel, tensors_on_different_devices
from fakexport.diagnostics import Diagnostic, Fix
from fakexport.rules import rule

__all__ = ["diagnose_failure"]

Detector = Callable[[CaptureFailure], Diagnostic | None]


def diagnose_failure(failure: CaptureFailure) -> Diagnostic:
    """The one diagnostic of a capture that failed.

    Reports:
        FE201, FE203, FE301, FE302, FE401, FE502 where their marks are found, else FE202.
    """
    for detector in _DETECTORS:
        diagnostic = detector(failure)
        if diagnostic is not None:
            return diagnostic
    return _forward_failed(failure)


# In this order: torch raises some of these errors as the cause of others.
_DETECTORS: tuple[Detector, ...] = (
    missing_fake_kernel,
    tensors_on_different_devices,
    dynamic_dim_specialised,
    data_dependent_value,
    data_dependent_branch,
    data_dependent_shape,
)


def _forward_failed(failure: CaptureFailure) -> Diagnostic:
    """FE202, which passes on what torch or the model said."""
    missing = re.search(r"missing \d+ required positional arguments?: (.+)", failure.messages[0])
    fix = Fix(f"give the missing input with --input: {missing[1]}") if missing else None
    return rule("FE202").diagnostic(
        labels=labels_of(failure, failure.error_types[0]),
        notes=torch_says(failure),
        fix=fix,
    )
