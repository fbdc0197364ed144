"""The forms that a program is compiled to, one row each. The command line needs them before torch."""

from collections.abc import Mapping
from typing import Literal

Form = Literal["aoti", "cpp-project", "executorch", "onnx"]

OPTIONS_OF: Mapping[Form, frozenset[str]] = {
    "aoti": frozenset(("weights", "target", "cache")),
    "cpp-project": frozenset(("cache",)),
    "executorch": frozenset(("backend",)),
    "onnx": frozenset(("weights",)),
}
"""The options that only some forms have."""
