"""A record in an archive that describes how to generate tokens with a program. Does not import torch."""

from __future__ import annotations

import math
from collections.abc import Iterable
from dataclasses import dataclass
from typing import Annotated

from fakexport.error import InvalidValue

from .typed_json import Most, Name, Size

CALLS = ("prefill", "decode", "chunk")
_MOST_TOKENS = 1_000_000
Tokens = Annotated[tuple[Size, ...], Most(_MOST_TOKENS)]


@dataclass(frozen=True)
class StateTensor:
    """A tensor that one generation call passes to the next, such as one layer's keys in the KV cache.

    Args:
        name: Name that all calls share, such as `past_key_values.layers_0_keys`. Tensors are matched
            by this name, not by order or shape.
        input: Name of the input for the tensor; None in prefill.
        output: Name of the output that returns the tensor.
    """

    name: Name
    input: Name | None
    output: Name


@dataclass(frozen=True, kw_only=True)
class GenerationDefaults:
    """Generation settings from a model's own configs.

    Args:
        eos: Token ids that end a sequence.
        pad: Padding token; if None, the first token in `eos`.
        decoder_start: First token of the decoder in an encoder-decoder model.
        longest: Maximum number of tokens, including the prompt, for which the model has positions.
        forced_first, forced_last: The token that is forced as the first new token, and the token that is
            forced as the last one if the maximum length is reached.
        suppressed, suppressed_first: Tokens that are never generated, and tokens that are not generated as
            the first new token.
        bad_words: Forbidden sequences of several tokens. The last token of a sequence is not generated if the
            other tokens of the sequence precede it.
        repetition_penalty: For tokens that have already occurred, positive scores are divided by this number,
            and negative scores are multiplied by it.
        no_repeat_ngram_size: Length of token sequences that must not occur twice; 0 for no such limit.
        least, least_new: Minimum number of tokens including the prompt, and minimum number of new tokens.
        is_drawn: Whether transformers samples by default (`do_sample`).
        temperature, top_k, top_p: Sampling settings, as for `Sampling`.
        not_applied: Names of settings that change what transformers generates, but that fakexport does not
            apply.
        own_generate: Name of the class that overrides `generate`; "" if there is none. fakexport does not
            apply such an override.

    Raises:
        ValueError: A number is out of range.
    """

    eos: Tokens = ()
    pad: Size | None = None
    decoder_start: Size | None = None
    longest: Size | None = None
    forced_first: Size | None = None
    forced_last: Size | None = None
    suppressed: Tokens = ()
    suppressed_first: Tokens = ()
    bad_words: Annotated[tuple[Tokens, ...], Most(_MOST_TOKENS)] = ()
    repetition_penalty: float = 1.0
    no_repeat_ngram_size: Size = 0
    least: Size = 0
    least_new: Size = 0
    is_drawn: bool = False
    temperature: float | None = None
    top_k: Size | None = None
    top_p: float | None = None
    not_applied: Annotated[tuple[Name, ...], Most(100)] = ()
    own_generate: Name = ""

    def __post_init__(self) -> None:
        for name in ("repetition_penalty", "temperature", "top_k", "top_p"):
            value = getattr(self, name)
            if value is not None and not 0 < value < math.inf:
                raise InvalidValue(f"{name} of the generation config is {value}, but must be above 0")
        if any(len(word) < 2 for word in self.bad_words):
            raise InvalidValue(
                "each entry of bad_words in the generation config must have at least two tokens"
            )


@dataclass(frozen=True, kw_only=True)
class CallRecord:
    """The roles of a program's inputs and outputs in text generation. Inputs and outputs are given by name.

    Args:
        workload: `prefill`, `decode` or `chunk`.
        tokens: The input for the tokens to continue.
        logits: The output with the scores. Its last position has the scores for the next token.
        prompt: The input for the prompt: the same as `tokens`, or the input of the encoder. None if the
            prompt is not text.
        mask: The input for the padding mask. The mask covers the prompt if the model has an encoder,
            otherwise all tokens.
        positions: The input for the position of each token.
        start: If the cache is stored inside the program, the input for the number of tokens that are already
            in the cache, which is the cache index of the call's first token. None if the cache is in `state`.
        state: Tensors that one call passes to the next.
        capacity: Number of tokens that fit into a static cache; None if the cache grows.
        defaults: The model's own generation settings.
    """

    workload: Name
    tokens: Name
    logits: Name
    prompt: Name | None
    mask: Name | None = None
    positions: Name | None = None
    start: Name | None = None
    state: tuple[StateTensor, ...] = ()
    capacity: Size | None = None
    defaults: GenerationDefaults = GenerationDefaults()

    def __post_init__(self) -> None:
        if self.workload not in CALLS:
            raise InvalidValue(f"{self.workload!r} is not a generation call: expected {' or '.join(CALLS)}")
        for what, names in (
            ("state", [tensor.name for tensor in self.state]),
            ("outputs", [tensor.output for tensor in self.state]),
            ("inputs", [tensor.input for tensor in self.state if tensor.input is not None]),
        ):
            if twice := _first_twice(names):
                raise InvalidValue(f"the {what} of a {self.workload} call contain `{twice}` twice")
        for tensor in self.state:
            if (tensor.input is None) != (self.workload == "prefill"):
                rule = "must not have" if self.workload == "prefill" else "must have"
                raise InvalidValue(
                    f"the state tensor `{tensor.name}` of a {self.workload} call {rule} an input"
                )

    @property
    def has_encoder(self) -> bool:
        """Whether the model has an encoder for the prompt and a separate decoder for the tokens."""
        return self.prompt != self.tokens


def _first_twice(names: Iterable[str]) -> str | None:
    seen: set[str] = set()
    return next((name for name in names if name in seen or seen.add(name)), None)  # type: ignore[func-returns-value]
