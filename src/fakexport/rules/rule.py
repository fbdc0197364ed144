"""`Rule`: a fault with its code, explanation, failing model and repair, read from a Markdown page."""

from __future__ import annotations

import re
import tomllib
from collections.abc import Mapping
from dataclasses import dataclass, field
from functools import cached_property
from pathlib import Path
from typing import Any, Literal, get_args

from fakexport.rules.diagnostics import Diagnostic, Fault, Severity, check_headline

FailsOn = Literal["build", "capture", "weights", "retarget", "compile", "never"]


@dataclass(frozen=True)
class Rule:
    """A fault that fakexport diagnoses: its explanation, a model that has the fault, and the repaired model.

    Args:
        code: Permanent code such as `FE201`; never reused for another fault.
        name: Name of the fault, and of the rule's page.
        severity: Severity of its diagnostics.
        message: Headline of its diagnostics: the fault, in at most eight words and 80 characters.
        why: What the fault is and why it matters, in torch's own terms; Markdown, several sentences.
        how_to_repair: What to change, as an imperative; Markdown.
        failing_model: Source text of a Python file whose `factory()` returns `(module, args)` or
            `(module, args, kwargs)`. The line that causes the fault ends in `# <- CODE`. None if no model can
            show the fault.
        repair: Changes that repair the failing model: hunks of a diff without line numbers, separated by
            blank lines. The lines that a hunk removes or keeps (`-`, space) occur exactly once in the failing
            model, without the `# <- CODE` mark.
        fails_on: Step that fails on the failing model:

            - `build`, `capture`: this step raises.
            - `weights`: the model exports, but does not match the checkpoint that the file's `checkpoint()`
              returns (a dict from names to tensors).
            - `retarget`: the model exports for `target`, but the program cannot be retargeted to the other
              kind of device.
            - `compile`: the model exports, but the program cannot be compiled to `form`.
            - `never`: no step raises; the rule inspects the exported program.
        target: Topology for which the failing and the repaired model are checked.
        dynamic: Declared ranges as on the command line, such as `{"x.0": "1..64"}`.
        fault: What usually has to be changed to fix the fault.
        links: URLs of further reading.
        form: Value of `fakexport compile --to`, such as `onnx`, or of `check --runtime`, if `fails_on` is
            `compile`.
        is_strict: Whether both models are traced with TorchDynamo (`--strict`).
        exportdb: Tags of ExportDB, torch's own collection of examples, such as `torch.dynamic-shape`.
        torch_error: Part of the error that stock torch raises on the failing model, if `fails_on` is `build`
            or `capture`.

    Raises:
        ValueError: The headline is malformed, `fails_on` is unknown, or only one of `failing_model` and
            `repair` is given.
    """

    code: str
    name: str
    severity: Severity
    message: str
    why: str
    how_to_repair: str
    failing_model: str | None
    repair: str | None
    fails_on: FailsOn = "never"
    target: str = "cpu"
    dynamic: Mapping[str, str] | None = field(default=None, hash=False)
    fault: Fault = "model"
    links: tuple[str, ...] = ()
    form: str | None = None
    is_strict: bool = False
    exportdb: tuple[str, ...] = ()
    torch_error: str | None = None

    @classmethod
    def read(cls, page: Path) -> Rule:
        """Read a rule from its page. Blank lines at the beginning and end of the texts are removed.

        Raises:
            ValueError: The page lacks a part or has the parts in a different order, or a field is invalid
                (see `Rule`).
        """
        found = _PAGE.fullmatch(page.read_text(encoding="utf-8"))
        if found is None:
            raise ValueError(f"{page.name} is not the page of a rule")
        fields: dict[str, Any] = tomllib.loads(found["fields"])
        fields |= {name: tuple(fields.get(name, ())) for name in ("links", "exportdb")}
        texts = found["why"].strip(), found["how_to_repair"].strip(), found["model"], found["repair"]
        return cls(
            fields.pop("code"), page.stem, fields.pop("severity"), fields.pop("message"), *texts, **fields
        )

    def __post_init__(self) -> None:
        check_headline(self.code, self.severity, self.message, self.fault)
        if self.fails_on not in get_args(FailsOn):
            raise ValueError(f"fails_on must be one of {', '.join(get_args(FailsOn))}; got {self.fails_on!r}")
        if (self.failing_model is None) != (self.repair is None):
            raise ValueError(f"{self.code} needs both a failing model and its repair, or neither")

    @cached_property
    def repaired_model(self) -> str | None:
        """The failing model with `repair` applied, and without the `# <- CODE` mark."""
        if self.failing_model is None or self.repair is None:
            return None
        repaired = "\n" + self.failing_model.replace(f"  # <- {self.code}\n", "\n")
        for hunk in self.repair.strip("\n").split("\n\n"):
            before, after = _side(hunk, "- "), _side(hunk, "+ ")
            first, *more = repaired.split(before)
            if len(more) != 1:
                raise ValueError(
                    f"{self.code}: the model must contain these lines once, not {len(more)} times:{before}"
                )
            repaired = first + after + more[0]
        return repaired.removeprefix("\n")

    def diagnostic(self, *, fault: Fault | None = None, **fields: Any) -> Diagnostic:
        """Return a diagnostic of this rule. `fields` are the other fields of `Diagnostic`, such as `labels`.

        Args:
            fault: Replaces the rule's `fault`.

        Raises:
            ValueError: As for `Diagnostic`.
        """
        return Diagnostic(self.code, self.severity, self.message, fault=fault or self.fault, **fields)


# The page of a rule: fields in TOML, the explanation, the failing model, the repair as text and as a diff.
_PAGE = re.compile(
    r"\+\+\+\n(?P<fields>.*?)\n\+\+\+\n(?P<why>.*?)(?:```python\n(?P<model>.*?)```\n)?\s*"
    r"## How to fix it\n(?P<how_to_repair>.*?)(?:```diff\n(?P<repair>.*?)```\n)?",
    re.DOTALL,
)


def _side(hunk: str, marks: str) -> str:
    """Return the lines of a hunk that begin with one of `marks`, without the mark."""
    return "".join(f"\n{line[1:]}" for line in hunk.split("\n") if line[0] in marks) + "\n"
