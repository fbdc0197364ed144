"""Convert text to token ids, and prompts to the input tensors of prefill, padded to equal length."""

from __future__ import annotations

import os
from collections.abc import Sequence
from typing import Any

import torch

from fakexport.error import InvalidType, InvalidValue, first_line
from fakexport.files import read_file
from fakexport.files.documents import CallRecord, GenerationDefaults

from ..artifact import DeployError
from ..signature import InputMismatchError

_FEWEST = 2  # `torch.export` specializes a size of 1.


def token_lists(prompts: Any) -> list[list[int]]:
    """Return the ids of each prompt. Raises `ValueError` or `TypeError` for any other form of prompts."""
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
                raise InvalidValue(f"{token} is not a token id: ids are nonnegative 64-bit integers")
    return lists


def prompt_inputs(
    prompts: Sequence[Sequence[int]], record: CallRecord, *, is_length_fixed: bool = False
) -> dict[str, torch.Tensor]:
    """Return prefill's inputs for the prompts: tokens and mask, by name.

    For a decoder-only model, prompts are padded on the left, so that every prompt ends at the last position.
    For an encoder, prompts are padded on the right. If prefill reads a fixed number of tokens, prompts are
    not padded, and decode reads the rest of the prompts. Raise an `InputMismatchError` if the prompts have
    different lengths and the program does not support padding.
    """
    assert record.prompt is not None
    shortest, longest = min(map(len, prompts)), max(map(len, prompts))
    is_placed = record.positions is not None and not is_length_fixed
    can_pad = record.mask is not None and (record.has_encoder or is_placed)
    if shortest != longest and not can_pad:
        raise InputMismatchError(
            f"the prompts have {shortest} to {longest} tokens, but the program has no mask and "
            "positions to exclude padding: pass prompts of equal length, or one at a time"
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
    return inputs


def positions_of(tokens: torch.Tensor, mask: torch.Tensor | None) -> torch.Tensor:
    """Return the position of each token in its prompt. Padding, which the mask excludes, does not count."""
    counted = torch.ones_like(tokens) if mask is None else (mask != 0).long()
    return (counted.cumsum(dim=-1) - 1).clamp(min=0)


def check_unpadded(prompts: Sequence[Sequence[int]], defaults: GenerationDefaults) -> None:
    """Raise if prompts contain padding: it would be read as text, because `prompt_inputs` makes the mask.

    A single padding token at the start of all prompts is accepted: some models begin a text with it.
    """
    pad = defaults.pad
    if pad is None or pad in defaults.eos:
        return
    starts = [row[0] == pad for row in prompts]
    are_equal = len({len(row) for row in prompts}) == 1
    for row in prompts:
        is_second = len(row) > 1 and row[0] == row[1] == pad
        if row[-1] == pad or is_second or (row[0] == pad and are_equal and not all(starts)):
            raise InputMismatchError(
                f"a prompt contains padding (the token {pad}): pass the prompts without it, as lists of "
                "different lengths, or pass the mask in `inputs`"
            )


_MOST_BYTES = 256 << 20


class Tokenizer:
    """A tokenizer that is loaded from a `tokenizer.json`.

    Raises:
        DeployError: The file is not a tokenizer.
        OSError: The file cannot be read.
    """

    def __init__(self, path: str | os.PathLike[str]) -> None:
        import tokenizers

        content = read_file(path, most_bytes=_MOST_BYTES)
        try:
            self._tokenizer: Any = tokenizers.Tokenizer.from_str(content.decode())
        except Exception as error:  # The library raises plain `Exception`s.
            raise DeployError(f"{os.fspath(path)} is not a tokenizer: {first_line(error)}") from error

    def tokens(self, text: str) -> list[int]:
        """Convert text to token ids, including special tokens that the tokenizer adds."""
        return list(self._tokenizer.encode(text).ids)

    def text(self, tokens: Sequence[int]) -> str:
        """Convert token ids to text, without special tokens."""
        return str(self._tokenizer.decode(list(tokens), skip_special_tokens=True))
