"""Whatever makes a program from another one hands on what is known of it."""

from __future__ import annotations

import ast
import copy
from collections.abc import Callable
from pathlib import Path

import pytest
import torch
from torch import nn
from torch.export import ExportedProgram

import fakexport as fe
from fakexport.exporting.program import flattened
from fakexport.exporting.program.derived_program import derived_program
from fakexport.exporting.program.program_facts import ProgramFacts, facts_of
from fakexport.exporting.program.stand_in_inputs import checked_module
from tests.contract.source_tree import Module, modules

MAKING = ("reassemble", "assemble", "ExportedProgram", "load_pt2", "torch.export.export")

# Where a program comes into being, and who gives it its facts.
PLACES = {
    ("exporting/capture/capture.py", "_traced_once"): "capture",
    ("archive/codec/program.py", "_program"): "load",
    ("_torch/tracing/program_assembly.py", "assemble"): "load",
    ("_torch/tracing/program_assembly.py", "reassemble"): "derived_program",
    ("exporting/program/derived_program.py", "derived_program"): "derived_program",
    ("exporting/stages/cut.py", "program_of"): "cut",
    (
        "_torch/tracing/program_assembly.py",
        "functional_program",
    ): "copied_metadata, before ExecuTorch",
    ("_torch/tracing/program_assembly.py", "partly_decomposed"): "no one: only a table is asked about it",
    ("deploy/coverage/coreml.py", "_decomposed"): "no one: only coremltools reads it",
    ("_torch/tracing/program_schema.py", "programs_of"): "no one: only torch reads the file",
    ("_torch/tracing/program_schema.py", "reading_fault"): "no one: an error's text needs it",
}


def made_in(module: Module) -> set[str]:
    """The functions of a module that call what makes a program."""
    found = set()
    for function in module.nodes:
        if isinstance(function, ast.FunctionDef):
            calls = (ast.unparse(node.func) for node in ast.walk(function) if isinstance(node, ast.Call))
            if any(call in MAKING or call.endswith(".run_decompositions") for call in calls):
                found.add(function.name)
    return found


def test_programs_come_into_being_in_known_places():
    found = {
        (module.path.removeprefix("src/fakexport/"), name) for module in modules() for name in made_in(module)
    }

    assert found == PLACES.keys()


def factory() -> tuple[nn.Module, tuple[torch.Tensor]]:
    return nn.Linear(4, 2), (torch.zeros(3, 4),)


STATE = dict(nn.Linear(4, 2).state_dict())


@pytest.fixture(scope="module")
def program() -> ExportedProgram:
    return fe.export(factory, target="H100")


@pytest.fixture
def saved(program: ExportedProgram, tmp_path: Path) -> Path:
    fe.save(program, tmp_path / "one.pt2")
    fe.save_bundle({"one": program}, tmp_path / "bundle.pt2")
    return tmp_path


def bound_bundle(program: ExportedProgram) -> fe.Bundle:
    return fe.bind(fe.Bundle({"one": program}), STATE, devices="cpu")


WAYS: dict[str, Callable[[ExportedProgram, Path], ExportedProgram]] = {
    "load": lambda program, folder: fe.load(folder / "one.pt2"),
    "load_method": lambda program, folder: fe.load(folder / "bundle.pt2", method="one"),
    "load_bundle": lambda program, folder: fe.load_bundle(folder / "bundle.pt2")["one"],
    "bind": lambda program, folder: fe.bind(program, STATE, devices="cpu"),
    "bind_loaded": lambda program, folder: fe.bind(folder / "one.pt2", STATE, devices="cpu"),
    "bind_bundle": lambda program, folder: fe.bind(fe.Bundle({"one": program}), STATE, devices="cpu")["one"],
    "retarget": lambda program, folder: fe.retarget(program, "cpu"),
    "retarget_loaded": lambda program, folder: fe.retarget(fe.load(folder / "one.pt2"), "cpu"),
    "bundle": lambda program, folder: fe.Bundle({"one": program})["one"],
    "derived": lambda program, folder: derived_program(
        program, state_dict=program.state_dict, constants=program.constants
    ),
    "flattened": lambda program, folder: flattened(program),
    "copy": lambda program, folder: copy.copy(program),
}


@pytest.mark.parametrize("way", WAYS)
def test_what_is_known_goes_on(way: str, program: ExportedProgram, saved: Path):
    made = facts_of(WAYS[way](program, saved))

    assert (made.source, made.skipped_checks) == ("factory", facts_of(program).skipped_checks)
    assert made.topology == ("cpu" if "bind" in way or "retarget" in way else "H100-80GB")


def test_of_a_program_that_torch_made_nothing_is_known():
    program = torch.export.export(nn.Linear(4, 2), (torch.zeros(3, 4),))

    assert facts_of(program) == facts_of(program.run_decompositions({})) == ProgramFacts()
    checked_module(program)
    assert facts_of(program) == ProgramFacts()


def test_a_copy_of_a_program_has_no_second_model(program: ExportedProgram):
    known = facts_of(program)

    assert copy.deepcopy(known) is known
