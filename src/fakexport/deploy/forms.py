"""The forms that a program can be compiled to. The command line needs this list before it imports torch."""

from collections.abc import Mapping
from typing import Literal

Form = Literal["aoti", "cpp-project", "executorch", "onnx"]

OPTIONS_OF: Mapping[str, frozenset[str]] = {
    "aoti": frozenset(("weights", "target", "cache", "tune")),
    "cpp-project": frozenset(("target", "cache")),
    "executorch": frozenset(("backend",)),
    "onnx": frozenset(("weights",)),
}
"""The options that each form accepts. Options that every form accepts are not listed."""
