"""The report on whether a checkpoint matches a model, and warnings about weights that were bound anyway."""

from __future__ import annotations

import sys
import warnings
from collections.abc import Collection, Iterable, Iterator, Sequence
from dataclasses import dataclass, replace
from math import prod
from pathlib import Path

from fakexport.archive.weights.likely_cause import Cause
from fakexport.files import escaped
from fakexport.rules import rule
from fakexport.rules.diagnostics import Diagnostic, Fix, Severity, render_text

_LINES, _NAMES, _FAULTS = 12, 3, 3


@dataclass(frozen=True)
class WeightFinding:
    """One fault, with all weights that have it.

    Args:
        code: Code of its rule, such as `FE701`.
        names: All affected weights, in the order of the model; for FE704, all unexpected entries, in the
            order of the files.
        expected: If the dtype or shape does not match, the expected one, such as `float32[4, 8]`.
        found: Dtype and shape of the checkpoint entry.
        cause: The likely cause.
        fix: How to fix it.
        severity: The severity, if it differs from the rule's.
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
        """The finding as a diagnostic. Names of repeated layers are folded into one line."""
        known = rule(self.code)
        made = known.diagnostic(
            notes=tuple(self._notes()), fix=None if self.fix is None else Fix(self.fix), count=len(self.names)
        )
        return replace(made, severity=self.severity or known.severity)

    @property
    def line(self) -> str:
        """The finding as a single line: the first weights, the rule's code, the fault and its cause."""
        folded = [escaped(name) for name in fold_names(self.names)]
        more = f" and {len(folded) - _NAMES} more" if len(folded) > _NAMES else ""
        if self.expected is None:
            fault = rule(self.code).message if self.found is None else self.found
        else:
            fault = f"expected {self.expected}, but the checkpoint has {self.found}"
        cause = "" if self.cause is None else f" ({self.cause_text})"
        return f"{', '.join(folded[:_NAMES])}{more} ({self.code}): {fault}{cause}"

    @property
    def cause_text(self) -> str | None:
        """The likely cause, with its names inserted and folded."""
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
            yield f"{names}\nexpected {self.expected}, but the checkpoint has {self.found}"
        if (cause := self.cause_text) is not None:
            yield f"likely cause: {cause}"


@dataclass(frozen=True)
class WeightsReport:
    """The result of checking a checkpoint against a model.

    Args:
        source: The model or program, as the caller passed it.
        checkpoint: Location of the checkpoint.
        weights: Number of tensors that the model expects. A tied tensor counts once.
        entries: Number of entries in the checkpoint.
        entry_bytes: Total size of the entries in bytes.
        converted: Number of entries that transformers merges, splits, transposes or dequantizes.
        computed: Weights that the checkpoint omits, but that the model's class computes, as in
            `from_pretrained`.
        findings: All mismatches, errors first.
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
        """Return all findings and a summary line."""
        return "\n\n".join([*map(render_text, self.diagnostics), self.summary])

    def __repr__(self) -> str:
        return f"<WeightsReport of {escaped(self.checkpoint)} for {escaped(self.source)}: {self.summary}>"

    @property
    def faults(self) -> str:
        """The first errors in a single line: `fc1.weight (FE702): expected ..., but the ...`."""
        errors = [f for f in self.findings if f.diagnostic.severity == "error"]
        more = [f"{len(errors) - _FAULTS} more findings"] if len(errors) > _FAULTS else []
        return "; ".join([*(finding.line for finding in errors[:_FAULTS]), *more])

    @property
    def is_bindable(self) -> bool:
        """Whether no finding is an error, so that `bind` accepts the checkpoint."""
        return all(diagnostic.severity != "error" for diagnostic in self.diagnostics)

    @property
    def summary(self) -> str:
        """Single line, such as `2 of 9 weights do not fit: FE701 (1), FE702 (1)`."""
        errors = [f for f in self.findings if f.diagnostic.severity == "error"]
        if not errors:
            return f"all {self.weights} weights fit"
        # FE705 is about the names of one tied weight, so its first name stands for all.
        names = [(f.code, f.names[:1] if f.code == "FE705" else f.names) for f in errors]
        count = len({name for _, each in names for name in each})
        codes: dict[str, int] = {}
        for code, each in names:
            codes[code] = codes.get(code, 0) + len(each)
        listed = ", ".join(f"{code} ({number})" for code, number in codes.items())
        return f"{count} of {self.weights} weights do not fit: {listed}"


def _folded(names: Iterable[str]) -> list[str]:
    """Merge names that differ only in numbers, and escape them, because the file is untrusted."""
    lines = [escaped(line) for line in fold_names(names)]
    if len(lines) <= _LINES:
        return lines
    return [*lines[:_LINES], f"and {len(lines) - _LINES} more"]


_SHOWN = 3


class WeightsWarning(UserWarning):
    """Weights were bound, but there may be a fault: FE704, FE706, or a hook or file that was ignored."""


def warn_of(checkpoint: str, findings: Iterable[WeightFinding]) -> None:
    """Warn about unexpected keys (FE704), and NaN and infinity (FE706). Other findings are ignored."""
    for finding in findings:
        count = len(finding.names)
        if finding.code == "FE704":
            entries = "an entry" if count == 1 else f"{count:,} entries"
            fault = f"{checkpoint} has {entries} that the model does not use"
        elif finding.code == "FE706":
            fault = f"{'a weight has' if count == 1 else f'{count:,} weights have'} NaN or infinity"
        else:
            continue
        folded = fold_names(finding.names)
        names = ", ".join([*folded[:_SHOWN], *(["..."] if len(folded) > _SHOWN else [])])
        text = escaped(f"{finding.code}: {fault}: {names}")
        warnings.warn(WeightsWarning(text), stacklevel=caller_level())


def warn_of_hooks(hooks: Collection[str]) -> None:
    """Warn about hooks that the model's own `load_state_dict` runs but `bind` does not."""
    if hooks:
        shown = ", ".join([*list(hooks)[:_SHOWN], *(["..."] if len(hooks) > _SHOWN else [])])
        text = (
            f"`load_state_dict` of the model also runs {shown}, but `bind` does not: the weights may differ"
        )
        warnings.warn(WeightsWarning(escaped(text)), stacklevel=caller_level())


def warn_of_settings(checkpoint: str, differing: Sequence[str]) -> None:
    """Warn that the settings of a checkpoint's model differ from those of the exported model."""
    if differing:
        shown = "; ".join([*differing[:_SHOWN], *(["..."] if len(differing) > _SHOWN else [])])
        text = f"{checkpoint} may belong to a different model than the exported one: {shown}"
        warnings.warn(WeightsWarning(escaped(text)), stacklevel=caller_level())


def warn_of_index(file: Path, index: Path) -> None:
    """Warn that a folder has both a file with all weights and an index of shards. The index is not read."""
    text = (
        f"{file.parent} has both {file.name} and {index.name}: only {file.name} is read, as in transformers"
    )
    warnings.warn(WeightsWarning(escaped(text)), stacklevel=caller_level())


def caller_level() -> int:
    """Return the `stacklevel` of the frame that called fakexport. Python 3.12 has `skip_file_prefixes`."""
    level, frame = 1, sys._getframe(1)
    while frame.f_back is not None and frame.f_globals.get("__name__", "").startswith("fakexport."):
        level, frame = level + 1, frame.f_back
    return level


Numbers = tuple[int, ...]

_SIGNS = frozenset("#{}")  # A name with one of these characters is not folded.


def template_of(name: str) -> str:
    """Replace each part of a name that is a number by `#`."""
    return ".".join("#" if _is_number(part) else part for part in name.split("."))


def fold_names(names: Iterable[str]) -> list[str]:
    """Fold names that differ only in numbers into one line, in order of first appearance.

    Each line represents exactly the names that were folded into it, and no others.

    Example:
        >>> fold_names(["h.0.w", "h.1.w", "h.2.w", "h.5.w", "b"])
        ['h.{0..2,5}.w', 'b']
    """
    groups: dict[tuple[bool, str], list[Numbers]] = {}  # A plain name may equal the template of other names.
    for name in dict.fromkeys(names):
        is_plain = not _SIGNS & set(name)
        numbers = tuple(int(part) for part in name.split(".") if is_plain and _is_number(part))
        groups.setdefault((is_plain, template_of(name) if is_plain else name), []).append(numbers)
    return [
        _filled(template, sets) if numbers[0] else template
        for (_, template), numbers in groups.items()
        for sets in _products(numbers)
    ]


def _is_number(part: str) -> bool:
    """Return whether the part is a number without leading zeros: `7`, but not `007`."""
    return part.isascii() and part.isdecimal() and len(part) < 10 and str(int(part)) == part


def _products(numbers: Sequence[Numbers]) -> list[tuple[tuple[int, ...], ...]]:
    """Split tuples of numbers into products of sets. A greedy search keeps the number of products small."""
    sets = tuple(tuple(sorted(set(column))) for column in zip(*numbers, strict=True))
    if prod(map(len, sets)) == len(numbers):
        return [sets]
    rests: dict[int, list[Numbers]] = {}
    for first, *rest in numbers:
        rests.setdefault(first, []).append(tuple(rest))
    firsts: dict[frozenset[Numbers], list[int]] = {}
    for number, tails in rests.items():
        firsts.setdefault(frozenset(tails), []).append(number)
    return [
        (tuple(sorted(numbers_)), *product)
        for tails_, numbers_ in firsts.items()
        for product in _products(sorted(tails_))
    ]


def _filled(template: str, sets: Sequence[Sequence[int]]) -> str:
    columns = iter(sets)
    return ".".join(_ranges(next(columns)) if part == "#" else part for part in template.split("."))


def _ranges(numbers: Sequence[int]) -> str:
    runs: list[list[int]] = []
    for number in numbers:
        if runs and number == runs[-1][-1] + 1:
            runs[-1].append(number)
        else:
            runs.append([number])
    texts = [f"{run[0]}..{run[-1]}" if len(run) > 2 else ",".join(map(str, run)) for run in runs]
    return texts[0] if len(numbers) == 1 else f"{{{','.join(texts)}}}"
