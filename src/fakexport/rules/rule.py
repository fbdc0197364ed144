"""The value type of a rule: a fault with a name, a reason, and a model that shows it."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from functools import cached_property
from typing import Literal, get_args

from fakexport.diagnostics import Diagnostic, Fault, Fix, Label, Severity, check_headline

FailsOn = Literal["build", "capture", "weights", "retarget", "compile", "never"]


@dataclass(frozen=True)
class Rule:
    """One fault that fakexport diagnoses: its explanation, and two models that prove it.

    Args:
        code: Permanent code such as `FE201`; never reused for another fault.
        name: Name of the fault, which is also the name of the rule's module.
        severity: Severity of its diagnostics.
        message: Headline of its diagnostics: the fault, in at most eight words and 80 characters.
        why: What it is and why it matters, in torch's own terms; Markdown, several sentences.
        how_to_repair: What to change; Markdown.
        failing_model: Source text of a Python file whose `factory()` returns `(module, args)` or
            `(module, args, kwargs)`. The line that causes the fault ends in `# <- CODE`. None if no model can
            show it.
        repair: What the fixed file changes: hunks of a diff without line numbers, separated by blank lines.
            What a hunk removes or keeps (`-`, space) occurs once in the failing model, without its mark.
        fails_on: The step that raises on the failing model: `build`, `capture`, or `never` (the
            rule reads facts of a program that exports); or `weights`: the model exports, and the checkpoint
            that the file's `checkpoint()` returns, tensors by name, does not match it. Or `retarget`: the
            model exports for `target`, and the program cannot be retargeted to the other kind of device. Or
            `compile`: the model exports, and the program cannot be compiled to `form`.
        target: Topology that both models are checked for.
        dynamic: Declared ranges as on the command line, such as `{"x.0": "1..64"}`. None: all static.
        fault: Who can fix it, as a rule.
        links: URLs of further reading.
        form: Value of `fakexport compile --to`, where `fails_on` is `compile`: `onnx`.
        is_strict: Whether both models are traced with TorchDynamo (`--strict`).
        exportdb: Tags of ExportDB, torch's own collection of examples, that cover it: `torch.dynamic-shape`.
        torch_error: Part of what stock torch raises on the failing model, where `fails_on` is `build` or
            `capture`.
    Raises:
        ValueError: malformed headline, unknown `fails_on`, or a model without a repair or the reverse.
    """

    code: str
    name: str
    severity: Severity
    message: str
    why: str
    how_to_repair: str
    failing_model: str | None
    repair: str | None
    fails_on: FailsOn
    target: str = "cpu"
    dynamic: Mapping[str, str] | None = field(default=None, hash=False)
    fault: Fault = "model"
    links: tuple[str, ...] = ()
    form: str | None = None
    is_strict: bool = False
    exportdb: tuple[str, ...] = ()
    torch_error: str | None = None

    def __post_init__(self) -> None:
        check_headline(self.code, self.severity, self.message, self.fault)
        if self.fails_on not in get_args(FailsOn):
            raise ValueError(f"fails_on must be one of {', '.join(get_args(FailsOn))}; got {self.fails_on!r}")
        if (self.failing_model is None) != (self.repair is None):
            raise ValueError(f"{self.code} needs both a failing model and its repair, or neither")

    @cached_property
    def repaired_model(self) -> str | None:
        """The failing model with the fault fixed: without the mark of the culprit, and with the repair."""
        if self.failing_model is None or self.repair is None:
            return None
        repaired = self.failing_model.replace(f"  # <- {self.code}\n", "\n")
        for hunk in self.repair.strip("\n").split("\n\n"):
            before, after = _side(hunk, "- "), _side(hunk, "+ ")
            first, *more = repaired.split(before)
            if len(more) != 1:
                raise ValueError(f"{self.code}: its model has this {len(more)} times, not once:{before}")
            repaired = first + after + more[0]
        return repaired

    def diagnostic(
        self,
        *,
        labels: tuple[Label, ...] = (),
        notes: tuple[str, ...] = (),
        fix: Fix | None = None,
        node: str | None = None,
        module_path: str | None = None,
        count: int = 1,
        fault: Fault | None = None,
        targets: tuple[str, ...] = (),
    ) -> Diagnostic:
        """Return a diagnostic of this rule; the arguments are those of `Diagnostic`.

        Args:
            fault: Default: that of the rule.
        Raises:
            ValueError: as for `Diagnostic`.
        """
        return Diagnostic(
            code=self.code,
            severity=self.severity,
            message=self.message,
            labels=labels,
            notes=notes,
            fix=fix,
            node=node,
            module_path=module_path,
            count=count,
            fault=self.fault if fault is None else fault,
            targets=targets,
        )


def _side(hunk: str, marks: str) -> str:
    """Return the lines of a hunk that begin with one of the marks, as lines of the file."""
    return "".join(f"\n{line[1:]}" for line in hunk.split("\n") if line[0] in marks) + "\n"
