"""The forms that a program can be compiled to. The command line needs this list before it imports torch."""

from collections.abc import Mapping
from typing import Literal

from fakexport.error import InvalidValue
from fakexport.files import plugins

Form = Literal["aoti", "cpp-project", "executorch", "onnx"]

OPTIONS_OF: Mapping[str, frozenset[str]] = {
    "aoti": frozenset(("weights", "target", "cache", "tune")),
    "cpp-project": frozenset(("target", "cache")),
    "executorch": frozenset(("backend",)),
    "onnx": frozenset(("weights", "names", "opset")),
}
"""The options that each form accepts. Options that every form accepts are not listed."""


def check_form(form: str) -> None:
    """Raise a ValueError if `form` is neither in this list nor a runtime of an installed package."""
    if form not in OPTIONS_OF and form not in (runtimes := plugins("runtimes")):
        known = ", ".join((*OPTIONS_OF, *runtimes))
        raise InvalidValue(f"cannot compile to {form!r}; the supported formats are {known}")
