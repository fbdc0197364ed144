"""How a checkpoint and a model fit together, and where they do not."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import dataclass, replace

from fakexport.diagnostics import Diagnostic, Fix, Severity, escaped, render_text
from fakexport.rules import rule
from fakexport.weights.likely_cause import Cause
from fakexport.weights.name_folding import fold_names

_LINES, _NAMES, _FAULTS = 12, 3, 3


@dataclass(frozen=True)
class WeightFinding:
    """One fault that several weights share.

    Args:
        code: Code of its rule, `FE701`.
        names: The weights; for FE704, the entries. All of them, in the order of the model or of the files.
        expected: Dtype and shape of the weight, `float32[4, 8]`, where they are the fault.
        found: Those of the entry.
        cause: The likely cause.
        fix: What to do about it.
        severity: If different from the rule's.
    """

    code: str
    names: tuple[str, ...]
    expected: str | None = None
    found: str | None = None
    cause: Cause | None = None
    fix: str | None = None
    severity: Severity | None = None

    @property
    def diagnostic(self) -> Diagnostic:
        """The finding for people: repeated layers are one line."""
        known = rule(self.code)
        made = known.diagnostic(
            notes=tuple(self._notes()), fix=None if self.fix is None else Fix(self.fix), count=len(self.names)
        )
        return replace(made, severity=self.severity or known.severity)

    @property
    def line(self) -> str:
        """The finding in one line, with the first names."""
        folded = [escaped(name) for name in fold_names(self.names)]
        more = f" and {len(folded) - _NAMES} more" if len(folded) > _NAMES else ""
        if self.expected is None:
            fault = rule(self.code).message if self.found is None else self.found
        else:
            fault = f"expected {self.expected}, the checkpoint has {self.found}"
        cause = "" if self.cause is None else f" ({self.cause_text})"
        return f"{', '.join(folded[:_NAMES])}{more} ({self.code}): {fault}{cause}"

    @property
    def cause_text(self) -> str | None:
        """The likely cause with its names, folded."""
        if self.cause is None:
            return None
        return self.cause.text.replace("{}", ", ".join(_folded(self.cause.names)))

    def _notes(self) -> Iterator[str]:
        names = "\n".join(_folded(self.names))
        if self.expected is None and self.found is None:
            yield names
        elif self.expected is None:
            yield f"{names}\n{self.found}"
        else:
            yield f"{names}\nexpected {self.expected}, the checkpoint has {self.found}"
        if (cause := self.cause_text) is not None:
            yield f"likely cause: {cause}"


@dataclass(frozen=True)
class WeightsReport:
    """The result of checking a checkpoint against a model.

    Args:
        source: The model or program, as it was named.
        checkpoint: Where the checkpoint is.
        weights: How many tensors the model expects; tied ones are counted once.
        entries: How many the checkpoint has.
        entry_bytes: Bytes of these.
        converted: How many entries transformers merges, splits, transposes or dequantizes.
        computed: Weights that the checkpoint lacks and the model's class computes, as in `from_pretrained`.
        findings: What does not fit: errors, then warnings.
    """

    source: str
    checkpoint: str
    weights: int
    entries: int
    entry_bytes: int
    converted: int
    findings: tuple[WeightFinding, ...]
    computed: tuple[str, ...] = ()

    @property
    def diagnostics(self) -> tuple[Diagnostic, ...]:
        """One diagnostic per finding."""
        return tuple(finding.diagnostic for finding in self.findings)

    def __str__(self) -> str:
        """Every finding for people, and one line of summary."""
        return "\n\n".join([*map(render_text, self.diagnostics), self.summary])

    def __repr__(self) -> str:
        """One line."""
        return f"<WeightsReport of {escaped(self.checkpoint)} for {escaped(self.source)}: {self.summary}>"

    @property
    def faults(self) -> str:
        """The first errors with names, in one line: `fc1.weight (FE702): expected ..., the ...`."""
        errors = [f for f in self.findings if f.diagnostic.severity == "error"]
        more = [f"{len(errors) - _FAULTS} more findings"] if len(errors) > _FAULTS else []
        return "; ".join([*(finding.line for finding in errors[:_FAULTS]), *more])

    @property
    def is_bindable(self) -> bool:
        """Whether nothing is known that prevents the binding."""
        return all(diagnostic.severity != "error" for diagnostic in self.diagnostics)

    @property
    def summary(self) -> str:
        """One line: `2 of 9 weights do not fit: FE701 (1), FE702 (1)`."""
        errors = [f for f in self.findings if f.diagnostic.severity == "error"]
        if not errors:
            return f"all {self.weights} weights fit"
        count = len({name for finding in errors for name in finding.names})
        codes: dict[str, int] = {}
        for finding in errors:
            codes[finding.code] = codes.get(finding.code, 0) + len(finding.names)
        listed = ", ".join(f"{code} ({number})" for code, number in codes.items())
        return f"{count} of {self.weights} weights do not fit: {listed}"


def _folded(names: Iterable[str]) -> list[str]:
    """Return lines for people: names are text of the file's author, and may hold line ends."""
    lines = [escaped(line) for line in fold_names(names)]
    if len(lines) <= _LINES:
        return lines
    return [*lines[:_LINES], f"and {len(lines) - _LINES} more"]
