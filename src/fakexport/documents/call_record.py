"""How a program of a language model is called to generate tokens, as an archive records it; free of torch."""

from __future__ import annotations

import math
from collections.abc import Iterable
from dataclasses import dataclass

from fakexport.error import InvalidValue

CALLS = ("prefill", "decode")


@dataclass(frozen=True)
class StateTensor:
    """A tensor that one call leaves to the next, such as the keys of one layer.

    Args:
        name: The same in prefill and decode, `past_key_values.layers_0_keys`. It alone says what belongs
            together: neither the order nor the shapes do.
        input: The input that takes it; None in prefill.
        output: The output that returns it.
    """

    name: str
    input: str | None
    output: str


@dataclass(frozen=True, kw_only=True)
class GenerationDefaults:
    """What a model's own configuration says about generation.

    Args:
        eos: Tokens that end a sequence.
        pad: The token after the end of a sequence; None: the first of `eos`.
        decoder_start: The token that a decoder with an encoder starts from.
        longest: Most tokens of a sequence, those of the prompt included, for which the model has positions.
        forced_first, forced_last: The first new token, and the last one at the greatest length.
        suppressed, suppressed_first: Tokens that are never generated, and those that are not the first one.
        bad_words: Sequences of several tokens, whose last one is not generated after the others.
        repetition_penalty: Divides scores above 0 of tokens that occurred, and multiplies the others.
        no_repeat_ngram_size: So many tokens do not occur twice in this order; 0 for no such limit.
        least, least_new: No sequence ends with fewer tokens, those of the prompt included or not.
        is_drawn: Whether transformers draws tokens by default.
        temperature, top_k, top_p: How tokens are drawn, as for `Sampling`.
        not_applied: Settings that change what transformers generates, and that fakexport does not follow.
        own_generate: The class whose own `generate` fakexport does not follow; "" if it has none.
    Raises:
        ValueError: a number that is out of its range.
    """

    eos: tuple[int, ...] = ()
    pad: int | None = None
    decoder_start: int | None = None
    longest: int | None = None
    forced_first: int | None = None
    forced_last: int | None = None
    suppressed: tuple[int, ...] = ()
    suppressed_first: tuple[int, ...] = ()
    bad_words: tuple[tuple[int, ...], ...] = ()
    repetition_penalty: float = 1.0
    no_repeat_ngram_size: int = 0
    least: int = 0
    least_new: int = 0
    is_drawn: bool = False
    temperature: float | None = None
    top_k: int | None = None
    top_p: float | None = None
    not_applied: tuple[str, ...] = ()
    own_generate: str = ""

    def __post_init__(self) -> None:
        for name in ("repetition_penalty", "temperature", "top_k", "top_p"):
            value = getattr(self, name)
            if value is not None and not 0 < value < math.inf:
                raise InvalidValue(f"{name} of the generation config is {value}, but must be above 0")
        if any(len(word) < 2 for word in self.bad_words):
            raise InvalidValue("bad_words of the generation config are of several tokens each")


@dataclass(frozen=True, kw_only=True)
class CallRecord:
    """The part that each input and output of a program has in generation.

    Args:
        workload: `prefill` or `decode`.
        tokens: The input with the tokens to continue.
        logits: The output with their scores; those of the last token are the last ones.
        prompt: The input with the prompt: `tokens`, or that of the encoder; None if it is not text.
        mask: The input that says which tokens are not padding: of the encoder's prompt, or of all tokens.
        positions: The input with the position of each token.
        start: The input with the place of the first of the tokens in a cache that the program itself keeps;
            None where the cache is `state`.
        state: What one call leaves to the next.
        capacity: Tokens that a static cache holds; None if the cache grows.
        defaults: What the model says about generation.
    """

    workload: str
    tokens: str
    logits: str
    prompt: str | None
    mask: str | None = None
    positions: str | None = None
    start: str | None = None
    state: tuple[StateTensor, ...] = ()
    capacity: int | None = None
    defaults: GenerationDefaults = GenerationDefaults()

    def __post_init__(self) -> None:
        if self.workload not in CALLS:
            raise InvalidValue(f"{self.workload!r} is not a call of generation: {' or '.join(CALLS)}")
        for what, names in (
            ("state", [tensor.name for tensor in self.state]),
            ("outputs", [tensor.output for tensor in self.state]),
            ("inputs", [tensor.input for tensor in self.state if tensor.input is not None]),
        ):
            if twice := _first_twice(names):
                raise InvalidValue(f"the {what} of a {self.workload} call contain `{twice}` twice")
        for tensor in self.state:
            if (tensor.input is None) != (self.workload == "prefill"):
                raise InvalidValue(f"`{tensor.name}` does not fit a {self.workload} call")

    @property
    def has_encoder(self) -> bool:
        """Whether the prompt goes to an encoder, and the tokens to a decoder next to it."""
        return self.prompt != self.tokens


def _first_twice(names: Iterable[str]) -> str | None:
    seen: set[str] = set()
    return next((name for name in names if name in seen or seen.add(name)), None)  # type: ignore[func-returns-value]
