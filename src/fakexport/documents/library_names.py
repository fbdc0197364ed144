"""Readers for names of library operators and classes, and of Python modules, in a document."""

from __future__ import annotations

import re

from fakexport.documents.typed_json import matching

_LENGTH = 4096
_WORD = r"[A-Za-z_]\w*"

operator_name = matching(re.compile(rf"{_WORD}(\.{_WORD}){{2}}", re.ASCII), "operator", _LENGTH)
"""`signal_ops.soft_clip.default`."""
class_name = matching(re.compile(rf"{_WORD}(::{_WORD})+", re.ASCII), "C++ class", _LENGTH)
"""`signal_ops::Polynomial`."""
module_name = matching(re.compile(rf"{_WORD}(\.{_WORD})*", re.ASCII), "Python module name", 200)
"""`transformers.integrations.moe`."""
