"""Report constants without a value: FE601, FE602, FE603."""

from __future__ import annotations

from collections.abc import Iterator

from fakexport.capture import Recovered, UnboundConstant
from fakexport.diagnose.labels import labels_at
from fakexport.diagnostics import Diagnostic, Fix
from fakexport.rules import rule

_FIXES = {
    "FE601": "compute it in `forward`, or make it a persistent buffer, so that the checkpoint contains it",
    "FE602": "draw it with `generator=torch.Generator().manual_seed(...)`, or make it a persistent buffer",
    "FE603": "compute it with operators that run on the CPU, or make it a persistent buffer",
}


def diagnose_constants(recovered: Recovered) -> Iterator[Diagnostic]:
    """Return one diagnostic per constant that has no value in the program, in the order of the constants.

    Reports:
        FE601, FE602, FE603. The place is the line that reads the constant; a constant that nothing reads
        has none.
    """
    return (_diagnostic(constant) for constant in recovered.unbound)


def _diagnostic(constant: UnboundConstant) -> Diagnostic:
    return rule(constant.code).diagnostic(
        labels=labels_at(constant.span, f"reads `{constant.name}`, which has no value"),
        notes=(f"{constant.name}: {constant.detail}",),
        fix=Fix(_FIXES[constant.code]),
        module_path=constant.name.rpartition(".")[0] or None,
    )
