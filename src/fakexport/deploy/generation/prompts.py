"""Prompts as the tensors of a call, padded to one length, and the tokenizer that makes them of text."""

from __future__ import annotations

import os
from collections.abc import Sequence
from typing import Any

import torch

from fakexport.documents import CallRecord
from fakexport.error import InvalidType, InvalidValue, first_line
from fakexport.files import read_file

from ..artifact import DeployError
from ..signature import UnsuitableInputs

_FEWEST = 2  # `torch.export` takes a size of 1 for a constant.


def token_lists(prompts: Any) -> list[list[int]]:
    """Return the tokens of each prompt.

    Raises:
        ValueError: a prompt without tokens, or no prompt.
        TypeError: something else than token ids.
    """
    found = prompts.tolist() if isinstance(prompts, torch.Tensor) else list(prompts)
    if found and all(isinstance(token, int) for token in found):
        found = [found]
    if not found:
        raise InvalidValue("there is no prompt")
    lists = [list(prompt) if isinstance(prompt, (list, tuple)) else [prompt] for prompt in found]
    for prompt in lists:
        if not prompt:
            raise InvalidValue("a prompt has no tokens")
        for token in prompt:
            if isinstance(token, bool) or not isinstance(token, int):
                raise InvalidType(f"{token!r} is not a token id: ids are integers")
            if not 0 <= token < 2**63:
                raise InvalidValue(f"{token} is not a token id: ids are 0 or more, and 64-bit integers")
    return lists


def prompt_inputs(
    prompts: Sequence[Sequence[int]], record: CallRecord, *, is_length_fixed: bool = False
) -> dict[str, torch.Tensor]:
    """Return the inputs of prefill that come from the prompt.

    A decoder alone is padded on the left, so that the last token of each prompt is the last one; the prompt
    of an encoder on the right.

    Args:
        is_length_fixed: Whether prefill reads one number of tokens, and decode the others: without padding.
    Raises:
        UnsuitableInputs: the prompts have unequal lengths, and the program cannot leave padding out.
    """
    assert record.prompt is not None
    shortest, longest = min(map(len, prompts)), max(map(len, prompts))
    is_placed = record.positions is not None and not is_length_fixed
    can_pad = record.mask is not None and (record.has_encoder or is_placed)
    if shortest != longest and not can_pad:
        raise UnsuitableInputs(
            f"the prompts have {shortest} to {longest} tokens, and the program has no mask and positions "
            "that leave padding out: pass prompts of one length, or one at a time"
        )
    longest = max(longest, _FEWEST) if can_pad else longest
    pad = record.defaults.pad or 0
    rows, masks = [], []
    for prompt in prompts:
        missing = longest - len(prompt)
        padding, ones = [pad] * missing, [1] * len(prompt)
        rows.append([*prompt, *padding] if record.has_encoder else [*padding, *prompt])
        masks.append([*ones, *[0] * missing] if record.has_encoder else [*[0] * missing, *ones])
    inputs = {record.prompt: torch.tensor(rows)}
    if record.mask is not None:
        inputs[record.mask] = torch.tensor(masks)
    if record.positions is not None and not record.has_encoder:
        inputs[record.positions] = (torch.tensor(masks).cumsum(dim=-1) - 1).clamp(min=0)
    return inputs


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
