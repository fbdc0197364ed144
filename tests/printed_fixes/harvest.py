"""Every fix that `fakexport check` prints for the failing models of the tests, and whether it works."""

from __future__ import annotations

import re
import tempfile
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import torch

import fakexport as fe
from fakexport.checking import Wanted, report_on
from fakexport.exporting.capture import Request
from fakexport.rules import all_rules
from fakexport.rules.diagnostics import Diagnostic
from tests.unit.report.diagnose.repair_corpus import CORPUS, Failing

VERIFIED, BY_HAND, FAILS = "verified", "by hand", "no"
SHOWN, NOT_TRIED = "its page repairs it", "not tried"
# Rules of other commands, whose failing models need a checkpoint, another device or a compiler.
_OF_OTHER_COMMANDS = ("weights", "retarget", "compile")


@dataclass(frozen=True)
class Case:
    """A failing model of the tests.

    Args:
        name: As the page shows it.
        code: What it fails with.
        source, repaired: The file, and the file as someone changed it who read the fix.
        target, dynamic, is_strict: Options of the check.
        failing: The entry of the corpus; None for a rule.
    """

    name: str
    code: str
    source: str
    repaired: str
    target: str = "cpu"
    dynamic: tuple[str, ...] = ()
    is_strict: bool = False
    failing: Failing | None = None


@dataclass(frozen=True)
class Row:
    """A printed fix.

    Args:
        name: The model.
        code: The finding.
        fix: What is printed.
        outcome: `verified`: fakexport tried it, and it works. `by hand`: the model that was changed by hand
            as it says exports without findings. `no`: that model does not. `its page repairs it`: the
            example of a rule, which is not repaired to the letter of the fix. `not tried`.
    """

    name: str
    code: str
    fix: str
    outcome: str


def cases() -> dict[str, Case]:
    """Return the failing models of the rules, and those of the corpus."""
    found = {
        f"{rule.code}, its example": Case(
            f"{rule.code}, its example",
            rule.code,
            rule.failing_model,
            rule.repaired_model or "",
            rule.target,
            tuple(f"{dim}={sizes}" for dim, sizes in (rule.dynamic or {}).items()),
            rule.is_strict,
        )
        for rule in all_rules()
        if rule.failing_model and rule.fails_on not in _OF_OTHER_COMMANDS
    }
    for name, each in CORPUS.items():
        if torch.__version__ < each.until:
            sources = (each.source(repaired=is_repaired) for is_repaired in (False, True))
            found[name] = Case(name, each.code, *sources, each.target, failing=each)
    return found


def rows(case: Case) -> list[Row]:
    """Return what is printed for a model, and whether it works."""
    path = Path(tempfile.mkdtemp(prefix="fakexport-printed-")) / "model.py"
    path.write_text(case.source)
    call = Request(
        source=f"{path}:factory",
        target=[case.target],
        dynamic_shapes=list(case.dynamic),
        strict=case.is_strict,
    )
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(0)  # Example inputs that are drawn decide which answer is printed.
        found = report_on(call, wanted=Wanted(tried_fixes=True)).diagnostics
    return [
        Row(case.name, each.code, each.fix.message, _outcome(each, case, path))
        for each in found
        if each.fix is not None and not each.fix.message.startswith("no fix is known")
    ]


def _outcome(found: Diagnostic, case: Case, path: Path) -> str:
    assert found.fix is not None
    if found.fix.is_verified:
        return VERIFIED
    if found.code != case.code:
        return NOT_TRIED
    if case.failing is None:
        return SHOWN if _is_clean(case, path.with_name("repaired.py")) else FAILS
    if case.failing.fix.replace("{file}", path.name) not in found.fix.message:
        return FAILS
    return BY_HAND if _is_clean(case, path.with_name("repaired.py")) else FAILS


def _is_clean(case: Case, path: Path) -> bool:
    path.write_text(case.repaired)
    is_option = case.failing is not None and "--assume" in case.failing.fix
    texts = re.findall(r"--assume (\S+)`", case.failing.fix) if case.failing and is_option else []
    report = fe.check(
        f"{path}:factory",
        target=[case.target],
        dynamic_shapes=list(case.dynamic),
        strict=case.is_strict,
        assume=[text.replace("{file}", path.name) for text in texts],
    )
    return report.is_clean and all(verdict.is_exportable for verdict in report.verdicts)


def harvest() -> Iterator[Row]:
    """Yield the rows of all models."""
    for case in cases().values():
        yield from rows(case)
