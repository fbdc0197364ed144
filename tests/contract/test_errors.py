"""Every error that fakexport raises on purpose derives from `FakexportError`, as the command line expects."""

import ast
import builtins

import pytest

from tests.contract.source_tree import Module, modules

ROOT = "FakexportError"
# Errors that are raised as the builtin ones, or that derive from no `FakexportError`, and why.
AS_BUILTIN = {
    # The mapping protocol and attribute access say which error.
    ("src/fakexport/__init__.py", "AttributeError"),
    ("src/fakexport/_lazy_face.py", "AttributeError"),
    ("src/fakexport/archive/bundle.py", "KeyError"),
    ("src/fakexport/archive/weights/checkpoint.py", "KeyError"),
    # Of the operating system, or of a file like one.
    ("src/fakexport/files/regular_file.py", "OSError"),
    ("src/fakexport/files/new_file.py", "OSError"),
    ("src/fakexport/files/new_file.py", "IsADirectoryError"),
    ("src/fakexport/files/container/writer.py", "OSError"),
    ("src/fakexport/cli/streams.py", "OSError"),
    # A value of our own that contradicts itself is a fault of our own.
    ("src/fakexport/rules/diagnostics/diagnostic.py", "ValueError"),
    ("src/fakexport/rules/rule.py", "ValueError"),
    ("src/fakexport/report/verdict.py", "ValueError"),
    ("src/fakexport/emulation/history/randomness.py", "RuntimeError"),
    # What torch.onnx expects of a translation that does not take the arguments.
    ("src/fakexport/deploy/onnx/compilation.py", "NotImplementedError"),
    # The cause of an error that a forked process raised.
    ("src/fakexport/files/processes/forked_calls.py", "RemoteTraceback"),
    # Signals, caught by fakexport.
    ("src/fakexport/exporting/capture/example_run.py", "_Ended"),
    ("src/fakexport/exporting/capture/exploration.py", "_Limited"),
    ("src/fakexport/cli/entry.py", "_Terminated"),
    ("src/fakexport/cli/entry.py", "KeyboardInterrupt"),
    ("src/fakexport/cli/time_limit.py", "TimeLimitExceeded"),
    ("src/fakexport/deploy/benchmark/worker.py", "OtherOutputs"),
    ("src/fakexport/deploy/benchmark/outcome.py", "StepFailed"),
    ("src/fakexport/report/diagnose/custom_operators.py", "NotComparable"),
    ("src/fakexport/emulation/history/replay.py", "_Unreplayable"),
    ("src/fakexport/exporting/interface/reading.py", "_Unreadable"),
    ("src/fakexport/exporting/program/retargeting/operator_run.py", "_Clash"),
    ("src/fakexport/models/sources/transformers/input_request.py", "Underivable"),
    ("src/fakexport/models/sources/media_inputs/encoder_runs.py", "_LanguageReached"),
}
# The errors of torch that a model sees on a real device, and signals.
MODULES = [module for module in modules() if module.room != "_torch"]


def is_error(name: str) -> bool:
    value = getattr(builtins, name, None)
    return isinstance(value, type) and issubclass(value, BaseException) and not issubclass(value, Warning)


def bases_of(trees: list[tuple[Module, ast.Module]]) -> dict[str, set[str]]:
    """The names of the bases of each class, by its name."""
    found: dict[str, set[str]] = {}
    for _, tree in trees:
        for node in ast.walk(tree):
            if isinstance(node, ast.ClassDef):
                names = {ast.unparse(base).rpartition(".")[2] for base in node.bases}
                found.setdefault(node.name, set()).update(names)
    return found


def ancestors(name: str, bases: dict[str, set[str]]) -> set[str]:
    above = bases.get(name, set())
    return above.union(*(ancestors(base, bases) for base in above)) if above else set()


def others(trees: list[tuple[Module, ast.Module]]) -> set[tuple[str, str]]:
    """Path and name of each error that is raised as a builtin one, or defined without `FakexportError`."""
    bases = bases_of(trees)
    found = set()
    for module, tree in trees:
        for node in ast.walk(tree):
            match node:
                case ast.Raise(exc=ast.Call(func=ast.Name(id=name)) | ast.Name(id=name)) if is_error(name):
                    found.add((module.path, name))
                case ast.ClassDef(name=name):
                    above = ancestors(name, bases)
                    if any(is_error(base) for base in above) and ROOT not in above | {name}:
                        found.add((module.path, name))
    return found


def test_every_error_derives_from_the_one_base():
    found = others([(module, module.tree) for module in MODULES])

    assert found == AS_BUILTIN


@pytest.mark.parametrize(
    ("statement", "name"),
    [
        ("raise ValueError('no')", "ValueError"),
        ("def f():\n    raise TypeError", "TypeError"),
        ("class Odd(Exception): ...", "Odd"),
        ("class Base(OSError): ...\nclass Odd(Base): ...", "Odd"),
    ],
)
def test_an_error_of_another_base_is_found(statement, name):
    module = Module("sample.py", "fakexport.sample", statement)

    assert ("sample.py", name) in others([(module, module.tree)])


@pytest.mark.parametrize(
    "statement",
    [
        "raise InvalidValue('no')",
        "raise",
        "class FakexportError(Exception): ...\nclass Even(FakexportError, ValueError): ...",
        "class Note(UserWarning): ...",
    ],
)
def test_an_error_of_the_one_base_passes(statement):
    module = Module("sample.py", "fakexport.sample", statement)

    assert not others([(module, module.tree)])
