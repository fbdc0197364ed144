"""Text to token ids and back, with a `tokenizer.json`."""

from __future__ import annotations

import os
from collections.abc import Sequence
from typing import Any

from fakexport.error import first_line
from fakexport.files import read_file

from ..artifact import DeployError

_MOST_BYTES = 256 << 20


class Tokenizer:
    """What a `tokenizer.json` says.

    Args:
        path: The file.
    Raises:
        DeployError: it is not a tokenizer.
        OSError: it cannot be read.
        ModuleNotFoundError: `tokenizers` is not installed: `pip install 'tokenizers>=0.22'`.
    """

    def __init__(self, path: str | os.PathLike[str]) -> None:
        import tokenizers

        content = read_file(path, most_bytes=_MOST_BYTES)
        try:
            self._tokenizer: Any = tokenizers.Tokenizer.from_str(content.decode())
        except Exception as error:  # The library raises plain exceptions.
            raise DeployError(f"{os.fspath(path)} is not a tokenizer: {first_line(error)}") from error

    def tokens(self, text: str) -> list[int]:
        """Return the ids of a text, with the special tokens that the tokenizer adds."""
        return list(self._tokenizer.encode(text).ids)

    def text(self, tokens: Sequence[int]) -> str:
        """Return the text of ids, without special tokens."""
        return str(self._tokenizer.decode(list(tokens), skip_special_tokens=True))
