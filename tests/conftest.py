"""How the tests run: each process with one thread, and nobody reading torch's trace of its own work."""

from __future__ import annotations

import gc
import logging
import os
import sys
from collections.abc import Generator, Iterator
from functools import cache
from pathlib import Path

import pytest
from hypothesis import HealthCheck, settings
from hypothesis.internal import constants_ast

from tests import levels, versions

# How long an example takes says how busy the machine is.
settings.register_profile("fakexport", deadline=None, suppress_health_check=[HealthCheck.too_slow])
settings.load_profile("fakexport")

# Each export searches the caches of loaded modules for fake tensors, except functions of other modules. In a
# run of all tests, these caches are the largest: hypothesis has read each source file.
for function in vars(constants_ast).values():
    if hasattr(function, "cache_info"):
        function.__module__ = __name__

# torch reads it when it is imported, here and in the processes that tests start. The models are tiny, and
# pytest-xdist has a process for each core: more threads only wait for each other.
os.environ.setdefault("OMP_NUM_THREADS", "1")

# Inductor reads it when it is imported. The glue code of a compiled program compiles in half the time without
# optimization; its kernels are optimized as for users.
os.environ.setdefault("AOT_INDUCTOR_COMPILE_WRAPPER_OPT_LEVEL", "O0")

# Tests of what a process of its own is for are elsewhere: tests/unit/checking, tests/unit/cli, tests/e2e.
_CHECKS_RUN_HERE = (
    *("tests/unit/exporting/", "tests/unit/models/", "tests/unit/planning/", "tests/unit/report/"),
    *("tests/unit/checking/lock/", "tests/unit/checking/test_size_parts.py"),
    "tests/e2e/test_lock_command.py",
)

# Imports and the collection of tests leave next to no garbage; the search for it took a tenth of all time.
gc.disable()


@pytest.hookimpl(wrapper=True, tryfirst=True)
def pytest_collection_modifyitems(
    config: pytest.Config, items: list[pytest.Item]
) -> Generator[None, None, None]:
    """Give tests their level; with `--dist loadgroup`, keep those of a file together, except `alone` ones.

    pytest-xdist 3.8 writes a group into `_nodeid`, which pytest 9.2 no longer reads: every test would be a
    group of its own, and each process would make the fixtures of every file.
    """
    levels.mark(items)
    versions.skip_what_is_lacking(items)
    is_grouped = config.getoption("loadgroup", False)
    for item in items if is_grouped else ():
        if not (item.get_closest_marker("xdist_group") or item.get_closest_marker("alone")):
            item.add_marker(pytest.mark.xdist_group(item.location[0]))
    yield
    for item in items if is_grouped else ():
        named = getattr(item, "_nodeid", item.nodeid)
        if named != item.nodeid:
            item._id = type(item.id).parse(named)


def pytest_collection_finish() -> None:
    _warm_up()
    _keep_out_of_the_collector()
    gc.set_threshold(20_000)  # An export makes many objects, and few cycles of them.
    gc.enable()
    # pytest 9 attaches a handler to every logger that does not propagate. Where that one has a handler, torch
    # extracts a stack and writes JSON at each step of an export.
    logging.getLogger("torch.__trace").propagate = True


def _warm_up() -> None:
    """`check` forks this process for each target: what torch does once per process is done before."""
    if "fakexport" in sys.modules:
        import tests.warm  # noqa: F401


def _keep_out_of_the_collector() -> None:
    """Modules and caches stay to the end of the process: the collector need not search them again."""
    gc.collect()
    gc.freeze()


@pytest.fixture(scope="module", autouse=True)
def checks_run_here(request: pytest.FixtureRequest) -> Iterator[None]:
    """In these files `check` does not fork: with so many modules, a fork takes longer than a small model."""
    with pytest.MonkeyPatch.context() as patch:
        if request.path.relative_to(request.config.rootpath).as_posix().startswith(_CHECKS_RUN_HERE):
            patch.setenv("FAKEXPORT_IN_PROCESS", "1")
        yield


@pytest.fixture(scope="session")
def torchlib_read_once() -> Iterator[None]:
    """torch.onnx reads the sources of its 500 translations for each export, which takes most of its time."""
    from torch.onnx._internal.exporter import _registration

    read = _registration.onnxscript_apis.get_torchlib_ops
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(_registration.onnxscript_apis, "get_torchlib_ops", cache(read))
        yield


@pytest.fixture(scope="module", autouse=True)
def a_file_leaves_nothing_to_the_next(tmp_path_factory: pytest.TempPathFactory) -> Iterator[None]:
    """Which files run before a file in its process is pytest-xdist's choice, and differs between runs."""
    hook, folder, modules = sys.excepthook, Path.cwd(), set(sys.modules)
    yield
    # torch puts a process group's rank before each line of a traceback, also when the group is gone.
    sys.excepthook = hook
    os.chdir(folder)
    written = tmp_path_factory.getbasetemp()
    for name in sys.modules.keys() - modules:
        file = getattr(sys.modules[name], "__file__", None)
        if isinstance(file, str) and Path(file).is_relative_to(written):
            del sys.modules[name]
    _keep_out_of_the_collector()
