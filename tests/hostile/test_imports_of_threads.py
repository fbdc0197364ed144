"""An import that another thread has begun goes on through the finders and folders that it began with."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

from fakexport.models.sources.python.python_file import importable

THREADS = """
import threading
import fakexport as fe

names = ["export", "check", "plan", "emulate", "fake_mode", "compile", "load", "bind"]
faults, start = [], threading.Barrier(len(names))

def first_use(name):
    start.wait()
    try:
        getattr(fe, name)
    except BaseException as error:
        faults.append(error)

threads = [threading.Thread(target=first_use, args=(name,)) for name in names]
[thread.start() for thread in threads]
[thread.join() for thread in threads]
assert not faults, faults
"""
FINDERS = """
import sys
from fakexport.emulation.fake.pretrained_models import pretrained_models

before, seen = sys.meta_path, list(sys.meta_path)
with pretrained_models():
    assert len(sys.meta_path) == len(seen) + 1
    assert before == seen
assert sys.meta_path == seen
assert "transformers" not in sys.modules
"""


def run(code: str) -> None:
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr


def test_the_first_uses_of_several_names_may_be_in_several_threads() -> None:
    run(THREADS)


def test_finders_come_and_go_without_a_change_to_the_list_that_others_iterate_over() -> None:
    run(FINDERS)


def test_a_folder_comes_and_goes_without_a_change_to_the_list_that_others_iterate_over(
    tmp_path: Path,
) -> None:
    before, seen = sys.path, list(sys.path)

    with importable(tmp_path):
        assert sys.path == [str(tmp_path), *seen]
        assert before == seen

    assert sys.path == seen
