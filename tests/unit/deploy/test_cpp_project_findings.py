"""What a C++ program cannot call is FE804, before anything is compiled or written."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import torch
from torch import nn

import fakexport as fe
from fakexport.deploy import CompileFailure
from fakexport.deploy.cpp_project import write_cpp_project
from fakexport.deploy.cpp_project.project import findings_of_program
from fakexport.rules import rule

RULE = rule("FE804")


def program_of(source: str, path: Path) -> Any:
    path.write_text(source)
    namespace: dict[str, Any] = {"__name__": "a_module_that_cannot_be_imported"}
    exec(compile(source, str(path), "exec"), namespace)
    return fe.export(namespace["factory"])


def test_the_failing_model_gives_the_rule_at_the_marked_line(tmp_path: Path) -> None:
    source = RULE.failing_model or ""
    program = program_of(source, tmp_path / "model.py")

    with pytest.raises(CompileFailure) as raised:
        write_cpp_project(program, tmp_path / "project")

    (diagnostic,) = raised.value.diagnostics
    marked = next(n for n, line in enumerate(source.splitlines(), 1) if line.endswith("# <- FE804"))
    assert diagnostic.code == "FE804"
    assert (diagnostic.primary.span.path, diagnostic.primary.span.line) == (
        str(tmp_path / "model.py"),
        marked,
    )
    assert diagnostic.notes == ("acme.softened.default at node softened is implemented in Python",)
    assert not (tmp_path / "project").exists()


def test_the_repaired_model_has_no_finding(tmp_path: Path) -> None:
    assert not [*findings_of_program(program_of(RULE.repaired_model or "", tmp_path / "model.py"))]


@torch.library.custom_op("cpp_project_findings::twice", mutates_args=())
def twice(x: torch.Tensor) -> torch.Tensor:
    return x * 2


twice.register_fake(torch.empty_like)


class Branching(nn.Module):
    """Calls one operator twice, in a branch."""

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return torch.cond(x.sum() > 0, lambda x: twice(twice(x)), lambda x: x + 1, (x,))


def test_a_call_in_a_branch_is_found_and_its_module_named() -> None:
    (diagnostic,) = findings_of_program(fe.export(Branching, (torch.ones(3),)))

    assert diagnostic.count == 2
    assert diagnostic.notes[0].endswith(f"is implemented in Python, in {__name__}")


def test_an_operator_of_cpp_is_no_finding() -> None:
    with torch.library._scoped_library("cpp_project_findings_native", "DEF") as library:
        library.define("half(Tensor x) -> Tensor")
        library.impl("half", lambda x: x / 2, "CompositeExplicitAutograd")
        torch.library.register_fake("cpp_project_findings_native::half", torch.empty_like, lib=library)

        class Half(nn.Module):
            def forward(self, x: torch.Tensor) -> torch.Tensor:
                return torch.ops.cpp_project_findings_native.half(x)

        assert not [*findings_of_program(fe.export(Half, (torch.ones(3),)))]
