"""What a C++ program cannot call is FE804, before anything is compiled or written."""

from __future__ import annotations

from pathlib import Path

import torch
from torch import nn

import fakexport as fe
from fakexport.deploy.cpp_project.project import findings_of_program
from fakexport.rules import rule


def test_the_repaired_model_has_no_finding(tmp_path: Path) -> None:
    path = tmp_path / "model.py"
    path.write_text(rule("FE804").repaired_model or "")

    assert not [*findings_of_program(fe.export(f"{path}:factory"))]


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
