"""Texts that are the same on every machine: without the paths of this one."""

from __future__ import annotations

import os
import re
from pathlib import Path

from fakexport.program import SourcePaths

_SOURCE = re.compile(
    r"(?P<kind>(?:[a-z]+:)?)(?P<path>(?:~|[A-Za-z]:)?[/\\].*?\.(?:json|py))(?P<rest>(?::.*)?)"
)
_PATH = re.compile(r"(?<![\w.~/])~?/[^\s'\"=,()\[\]:]+")


def portable(text: str, root: str | os.PathLike[str] | None = None) -> str:
    """Return the text with absolute paths made relative to `root`; a path outside keeps its last part.

    Example:
        >>> portable("hf:/home/me/work/gpt2.json:AutoModel", "/home/me")
        'hf:work/gpt2.json:AutoModel'
        >>> portable("/tmp/my models/model.py:factory")
        'model.py:factory'
    """
    paths = SourcePaths(None if root is None else Path(root))

    def shortened(path: str) -> str:
        return paths.shortened(os.path.expanduser(path))  # noqa: PTH111 (a path may begin with no user's `~x`)

    if source := _SOURCE.fullmatch(text):  # A path in it may have blanks.
        return f"{source['kind']}{shortened(source['path'])}{source['rest']}"
    return _PATH.sub(lambda found: shortened(found[0]), text)
