"""`@pytest.mark.fakexport(...)` and the fixture `fakexport_check`: a model that does not export fails a test.

pytest imports this module in every run, so it imports nothing but pytest until a test uses it.
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
    "returns, with its example inputs, must export for each target without errors. The options are those of "
    f"fakexport.check; with the fixture {FIXTURE} they are its defaults."
)
# As the command line calls it, and as `fakexport.check` does.
_SHORT = {"dynamic": "dynamic_shapes", "input": "inputs"}


def pytest_configure(config: pytest.Config) -> None:
    """Register the mark, which `--strict-markers` asks for."""
    config.addinivalue_line("markers", _HELP)


@pytest.hookimpl(tryfirst=True)
def pytest_pyfunc_call(pyfuncitem: pytest.Function) -> object | None:
    """Check what a marked test returns, instead of running it as a test."""
    if FIXTURE in pyfuncitem.fixturenames or pyfuncitem.get_closest_marker(MARK) is None:
        return None
    test = pyfuncitem.obj
    given = {name: pyfuncitem.funcargs[name] for name in inspect.signature(test).parameters}

    def factory() -> object:
        made = test(**given)
        if made is None:
            pytest.fail(
                f"{pyfuncitem.name} returned None: a test with the mark {MARK} returns a model, (model, "
                f"args) or (model, args, kwargs), or uses the fixture {FIXTURE}",
                pytrace=False,
            )
        return made

    factory.__name__ = factory.__qualname__ = pyfuncitem.name
    _checked(factory, _options(pyfuncitem))
    return True


@pytest.fixture
def fakexport_check(request: pytest.FixtureRequest) -> Callable[..., Report]:
    """Return `fakexport.check` that fails the test unless every target exports without errors.

    Its arguments are those of `fakexport.check`, and `dynamic` for `dynamic_shapes`; the mark `fakexport` has
    defaults for them. It returns the report.

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
    """Return the options of the marks of a test, those of its class and module below its own."""
    merged: dict[str, Any] = {}
    for mark in reversed(list(item.iter_markers(MARK))):
        if mark.args:
            pytest.fail(f"the mark {MARK} takes options by name, such as target='H100'", pytrace=False)
        merged |= _long(mark.kwargs)
    return merged


def _long(options: Mapping[str, Any]) -> dict[str, Any]:
    return {_SHORT.get(name, name): value for name, value in options.items()}


def _checked(source: Any, options: dict[str, Any], *args: Any) -> Report:
    """Return the report of a check; one with errors fails the test, with the text of the command line."""
    from fakexport.checking import check
    from fakexport.error import FakexportError

    known = inspect.signature(check).parameters
    for name in options:
        if name not in known:
            pytest.fail(f"unknown option {name!r} of {MARK}; it has {', '.join(known)}", pytrace=False)
    try:
        report = check(source, *args, **options)
    except FakexportError as error:
        pytest.fail(f"the model was not checked: {error}", pytrace=False)
    except pytest.fail.Exception as error:  # Of the factory, which ran in a process of its own.
        pytest.fail(error.msg or "", pytrace=False)
    if not report.is_clean:
        pytest.fail(str(report), pytrace=False)
    return report
