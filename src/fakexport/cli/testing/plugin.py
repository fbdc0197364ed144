"""Fail a test if a model does not export: `@pytest.mark.fakexport(...)` and the fixture `fakexport_check`.

pytest imports this module in every run, so it imports only pytest until a test uses it.
"""

from __future__ import annotations

import inspect
from collections.abc import Callable, Mapping
from typing import TYPE_CHECKING, Any

import pytest

if TYPE_CHECKING:
    from fakexport.report import Report

MARK, FIXTURE = "fakexport", "fakexport_check"
_HELP = (
    f"{MARK}(target=..., dtype=..., dynamic=..., **options): the test is a factory: the model that it "
    "returns, with its example inputs, must export for each target without errors. The options are arguments "
    f"of fakexport.check; in a test that uses the fixture {FIXTURE}, they are defaults for its calls."
)
# Name of an option on the command line -> argument of `fakexport.check`.
_SHORT = {"dynamic": "dynamic_shapes", "input": "inputs"}


def pytest_configure(config: pytest.Config) -> None:
    """Register the marker, which `--strict-markers` requires."""
    config.addinivalue_line("markers", _HELP)


@pytest.hookimpl(tryfirst=True)
def pytest_pyfunc_call(pyfuncitem: pytest.Function) -> object | None:
    """Check the model that a marked test returns, instead of running it as an ordinary test."""
    if FIXTURE in pyfuncitem.fixturenames or pyfuncitem.get_closest_marker(MARK) is None:
        return None
    test = pyfuncitem.obj
    given = {name: pyfuncitem.funcargs[name] for name in inspect.signature(test).parameters}

    def factory() -> object:
        made = test(**given)
        if made is None:
            pytest.fail(
                f"{pyfuncitem.name} returned None: a test with the mark {MARK} must return a model, (model, "
                f"args) or (model, args, kwargs), or use the fixture {FIXTURE}",
                pytrace=False,
            )
        return made

    factory.__name__ = factory.__qualname__ = pyfuncitem.name
    _checked(factory, _options(pyfuncitem))
    return True


@pytest.fixture
def fakexport_check(request: pytest.FixtureRequest) -> Callable[..., Report]:
    """Return a function that calls `fakexport.check` and fails the test unless all targets export cleanly.

    The function returns the report. It takes the arguments of `fakexport.check`, with the short names
    `dynamic` for `dynamic_shapes` and `input` for `inputs`. The mark `fakexport` sets their defaults.

    Example:
        >>> def test_export(fakexport_check):
        ...     report = fakexport_check("model.py:factory", target="H100")
        ...     assert not report.verdicts[0].transfers
    """
    defaults = _options(request.node)

    def check(source: Any, *args: Any, **options: Any) -> Report:
        return _checked(source, {**defaults, **_long(options)}, *args)

    return check


def _options(item: pytest.Item) -> dict[str, Any]:
    """Return the options of a test's marks. A mark of the test overrides marks of its class and module."""
    merged: dict[str, Any] = {}
    for mark in reversed(list(item.iter_markers(MARK))):
        if mark.args:
            pytest.fail(f"the mark {MARK} takes options by name, such as target='H100'", pytrace=False)
        merged |= _long(mark.kwargs)
    return merged


def _long(options: Mapping[str, Any]) -> dict[str, Any]:
    return {_SHORT.get(name, name): value for name, value in options.items()}


def _checked(source: Any, options: dict[str, Any], *args: Any) -> Report:
    """Check a model and return the report. If it has errors, fail the test with the printed report."""
    from fakexport.checking import check
    from fakexport.error import FakexportError

    known = inspect.signature(check).parameters
    for name in options:
        if name not in known:
            pytest.fail(f"unknown {MARK} option {name!r}; the options are {', '.join(known)}", pytrace=False)
    try:
        report = check(source, *args, **options)
    except FakexportError as error:
        pytest.fail(f"the model was not checked: {error}", pytrace=False)
    except pytest.fail.Exception as error:  # The factory raised it in its own process.
        pytest.fail(error.msg or "", pytrace=False)
    if not report.is_clean:
        pytest.fail(str(report), pytrace=False)
    return report
