"""Every question of torch is in the table of the CUDA wheel, is answered by the device, or is judged."""

from __future__ import annotations

import functools
import importlib
import importlib.util
import sys
import tomllib
from pathlib import Path

import pytest
import torch

from fakexport._torch.emulation import wheel_answers
from fakexport._torch.emulation.device_queries import DeviceAnswers
from fakexport._torch.emulation.query_patches import query_patches
from fakexport._version import NEWEST_TORCH, OLDEST_TORCH

PROJECT = Path(__file__).parents[2]
TABLES = tomllib.loads(Path(wheel_answers.__file__).with_suffix(".toml").read_text())
JUDGED = Path(__file__).with_name("questions_that_no_wheel_answers.txt").read_text().split()
VERSION = ".".join(torch.__version__.split(".")[:2])

spec = importlib.util.spec_from_file_location("tool", PROJECT / "tools" / "wheel_answers.py")
tool = importlib.util.module_from_spec(spec)
spec.loader.exec_module(tool)


@functools.cache
def questions():
    return {f"{module}.{name}" for module, name, _ in tool.questions(Path(torch.__file__).parent)}


def answered_by_the_device():
    device = DeviceAnswers("any", (9, 0), 1, "sm_90", is_rocm=False, has_native_bfloat16=True)
    replaced = query_patches({"cuda": [device], "xpu": [device], "mps": [device]})._replacements
    functions = {owner for owner, name in replaced if name == "__code__"}
    owners = {f"{owner.__name__}.{name}" for owner, name in replaced if name != "__code__"}
    return {
        question
        for question in questions()
        if question in owners or getattr(found(question), "__wrapped__", found(question)) in functions
    }


def found(question):
    module, _, name = question.rpartition(".")
    return getattr(importlib.import_module(module), name)


def test_each_question_is_known():
    unknown = questions() - TABLES[VERSION].keys() - answered_by_the_device() - {*JUDGED}

    assert unknown == set(), "run tools/wheel_answers.py, or judge them: see CONTRIBUTING.md"
    assert {"torch.cuda.is_available", "torch.backends.cudnn.version"} <= questions()
    assert len(questions()) > 80
    assert sorted(set(JUDGED)) == JUDGED


def test_each_supported_version_has_a_table():
    versions = {f"{NEWEST_TORCH[0]}.{minor}" for minor in range(OLDEST_TORCH[1], NEWEST_TORCH[1] + 1)}

    assert versions == TABLES.keys()


@pytest.mark.skipif(torch.version.cuda is None, reason="needs a CUDA wheel")
def test_a_cuda_wheel_answers_as_its_table_says():
    _, answers = tool._asked_with(sys.executable)

    for name, stored in TABLES[VERSION].items():
        if name != "wheel":
            expected = stored["9.0"] if isinstance(stored, dict) else stored
            assert (name, answers["9.0"][name]) == (name, expected)
