"""Generate tokens. Prefill reads the prompts, then decode reads one token of each sequence per call."""

from __future__ import annotations

import os
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Literal

import torch

from fakexport.archive import Bundle, load_bundle
from fakexport.archive.weights import CheckpointSource
from fakexport.error import InvalidValue
from fakexport.files.documents import GenerationDefaults

from ..opening import with_weights
from ..signature import InputMismatchError
from .calls import Call, calls_of, check_same_cache
from .prompts import check_unpadded, positions_of, prompt_inputs, token_lists
from .sampling import Place, Sampling, restricted

_GREEDY = Sampling()
Stop = Literal["eos", "length"]


@dataclass(frozen=True)
class Generated:
    """The new tokens of each prompt, including the token that ended the sequence, and why each sequence
    ended.

    Each entry of `stops` is `eos`, or `length` if the sequence has the requested number of tokens. `notes`
    contains one sentence for each setting of the model's generation config that is not applied.
    """

    tokens: tuple[tuple[int, ...], ...]
    stops: tuple[Stop, ...]
    notes: tuple[str, ...] = ()


class Generator:
    """Generate tokens with a bundle of prefill and decode. A generator can be called repeatedly.

    Args:
        bundle: A bound bundle, from `bind` or from an archive with weights.

    Raises:
        DeployError: The bundle's programs do not fit together, or are not for generation.
        WeightsNotBoundError: The bundle has no weights.

    Example:
        >>> Generator(load_bundle("bound.pt2"))([1, 2, 3], max_new_tokens=5).tokens  # doctest: +SKIP
        ((4, 8, 15, 16, 23),)
    """

    def __init__(self, bundle: Bundle) -> None:
        self._prefill, self._decode = calls_of(bundle)
        for call in (self._prefill, self._decode):
            _ = call.run  # Raises if a program has no weights.
        check_same_cache(self._prefill, self._decode)

    @property
    def defaults(self) -> GenerationDefaults:
        """Generation settings from the model's own config."""
        return self._prefill.record.defaults

    def __call__(
        self,
        prompts: Any = None,
        *,
        max_new_tokens: int,
        sampling: Sampling = _GREEDY,
        eos: Sequence[int] | None = None,
        inputs: Mapping[str, torch.Tensor] | None = None,
    ) -> Generated:
        """Generate tokens for each prompt. The arguments are the same as for `generate`."""
        if max_new_tokens < 1:
            raise InvalidValue(f"max_new_tokens is {max_new_tokens}, but must be 1 or more")
        lists, others = self._prompts(prompts), dict(inputs or {})
        stops = frozenset(self.defaults.eos if eos is None else eos)
        sampling = sampling.completed(self.defaults)
        numbers = sampling.generator()
        # If the batch size is fixed to 1, process the prompts one after the other.
        is_one_by_one = self._prefill.batch == 1 and len(lists) > 1 and not others
        batches = [[prompt] for prompt in lists] if is_one_by_one else [lists]
        rows: list[list[int]] = []
        for batch in batches:
            run = _Run(self._prefill, self._decode, batch, others, max_new_tokens)
            rows += self._rows(run, max_new_tokens, sampling, stops, numbers)
        return Generated(
            tokens=tuple(map(tuple, rows)),
            stops=tuple("eos" if row[-1] in stops else "length" for row in rows),
            notes=tuple(self._notes(sampling)),
        )

    def _notes(self, sampling: Sampling) -> Iterator[str]:
        for name in self.defaults.not_applied:
            yield f"{name} of the model's generation config is not applied"
        if own := self.defaults.own_generate:
            yield f"{own} has its own generate, which is not used: generation calls its forward"
        if self.defaults.is_drawn and sampling.is_greedy:
            yield (
                "do_sample of the model's generation config is not applied: pass temperature, top_k or "
                "top_p to sample"
            )

    def _prompts(self, prompts: Any) -> list[list[int]]:
        name = self._prefill.record.prompt
        if prompts is None and name is not None:
            raise InvalidValue(f"there is no prompt: the program expects {name}")
        if prompts is not None and name is None:
            named = ", ".join(self._prefill.inputs)
            raise InvalidValue(f"the program does not accept a prompt of token ids: pass {named} as inputs")
        return [] if prompts is None else token_lists(prompts)

    def _rows(
        self,
        run: _Run,
        max_new_tokens: int,
        sampling: Sampling,
        eos: frozenset[int],
        numbers: torch.Generator,
    ) -> list[list[int]]:
        """Return the new tokens of each sequence in a batch."""
        rows: list[list[int]] = [[] for _ in range(run.batch)]
        is_open = [True] * run.batch
        for generated in range(max_new_tokens):
            is_last = generated + 1 == max_new_tokens
            texts = [[*start, *row] for start, row in zip(run.texts, rows, strict=True)]
            place = Place(texts, generated, is_last, run.is_after_one, eos)
            scores = restricted(run.scores, self.defaults, place)
            chosen = sampling.chosen(scores, numbers).tolist()
            for row, token in enumerate(chosen):
                if is_open[row]:
                    rows[row].append(token)
                    is_open[row] = token not in eos
            if is_last or not any(is_open):
                break
            # The input of a sequence that has ended does not affect other sequences.
            run.step([token if is_open[row] else run.pad for row, token in enumerate(chosen)])
        return rows


class _Run:
    """The calls of prefill and decode for one batch, which may have other inputs than prompts."""

    def __init__(
        self,
        prefill: Call,
        decode: Call,
        prompts: list[list[int]],
        others: Mapping[str, torch.Tensor],
        new_tokens: int,
    ) -> None:
        record = prefill.record
        self._decode = decode
        pads = (record.defaults.pad, *record.defaults.eos)
        self.pad = next((token for token in pads if token is not None), 0)
        is_fixed = prefill.length is not None and not record.has_encoder
        from_prompts = prompt_inputs(prompts, record, is_length_fixed=is_fixed) if prompts else {}
        if record.mask not in others:
            check_unpadded(prompts, record.defaults)
        given = {**from_prompts, **others}
        if record.start is not None:
            if record.start in others:
                raise InputMismatchError(f"do not pass {record.start}: generate computes it")
            given[record.start] = torch.zeros(1, dtype=torch.long)
        _check_tokens(prompts, prefill)
        if not record.has_encoder:
            _check_last(given.get(record.mask or ""))
        if (
            prompts
            and record.positions is not None
            and not record.has_encoder
            and record.positions not in others
        ):
            _check_positions(prefill)
            given[record.positions] = positions_of(given[record.tokens], given.get(record.mask or ""))
        if not given:
            raise InputMismatchError(f"there are no inputs: the program expects {', '.join(prefill.inputs)}")
        self.batch = len(next(iter(given.values())))
        if record.has_encoder and record.tokens not in given:
            given[record.tokens] = torch.full((self.batch, 1), _decoder_start(record.defaults))
        first = given[record.tokens]
        self.is_after_one = first.shape[1] == 1
        self.texts = _texts(first, None if record.has_encoder else given.get(record.mask or ""))
        _check_length(first.shape[1] + new_tokens, prefill, decode)
        # If prefill reads a fixed number of tokens, decode reads the rest of the prompt.
        read = first.shape[1] if prefill.length is None else prefill.length
        if first.shape[1] < read:
            raise InputMismatchError(
                f"the program reads prompts of at least {read} tokens, got {first.shape[1]}"
            )
        along = [record.tokens, record.positions, None if record.has_encoder else record.mask]
        self._read = read
        given |= {name: given[name][..., :read] for name in along if name is not None and name in given}
        self._mask = None if record.mask is None else given.get(record.mask)
        self._positions = None if record.positions is None else _last_positions(given[record.positions])
        self._keep(prefill, prefill.run(given))
        for column in first[:, read:].unbind(dim=1):
            self.step(column.tolist())

    def step(self, tokens: list[int]) -> None:
        """Run decode on the next token of each sequence."""
        record = self._decode.record
        inputs = {record.tokens: torch.tensor(tokens)[:, None]}
        inputs |= {tensor.input or "": self._state[tensor.name] for tensor in record.state}
        if record.start is not None:
            inputs[record.start] = torch.tensor([self._read])
        self._read += 1
        if record.mask is not None and self._mask is not None:
            if not record.has_encoder:
                self._mask = torch.cat([self._mask, self._mask.new_ones(self.batch, 1)], dim=1)
            inputs[record.mask] = self._mask
        if record.positions is not None and self._positions is not None:
            self._positions = self._positions + 1
            inputs[record.positions] = self._positions
        self._keep(self._decode, self._decode.run(inputs))

    def _keep(self, call: Call, outputs: Mapping[str, torch.Tensor]) -> None:
        self._state = call.state(outputs)
        self.scores = outputs[call.record.logits][:, -1].to("cpu", torch.float32)


def _texts(tokens: torch.Tensor, mask: torch.Tensor | None) -> list[list[int]]:
    """Return the tokens of each sequence, without the padding before them."""
    if mask is None:
        return tokens.tolist()
    starts = (mask != 0).int().argmax(dim=1).tolist()
    return [row[start:] for row, start in zip(tokens.tolist(), starts, strict=True)]


def _check_tokens(prompts: list[list[int]], prefill: Call) -> None:
    """Reject token ids outside the vocabulary. torch's own error would only mention the embedding lookup."""
    count = prefill.vocabulary
    greatest = max(map(max, prompts), default=-1)
    if count is not None and greatest >= count:
        raise InputMismatchError(
            f"the token {greatest} does not exist: the model has {count} tokens, starting at 0"
        )


def _check_last(mask: torch.Tensor | None) -> None:
    """Reject padding after a prompt, because the next token is predicted from the last position."""
    if mask is not None and mask.dim() == 2 and not bool((mask[:, -1] != 0).all()):
        raise InputMismatchError("the mask excludes the last token of a prompt: pad prompts on the left")


def _check_positions(prefill: Call) -> None:
    """Reject separate positions for time, height and width: they depend on images, not on tokens."""
    name = prefill.record.positions
    rank = next(len(tensor.shape) for tensor in prefill.signature.inputs if tensor.name == name)
    if rank != 2:
        raise InputMismatchError(
            f"the program expects {name} with {rank} dimensions. Its values depend on the images: pass it "
            "in `inputs`, as returned by the model's get_rope_index"
        )


def _last_positions(positions: torch.Tensor) -> torch.Tensor:
    """Return the last position of each sequence; of 3 positions per token, the largest."""
    return positions[..., -1:] if positions.dim() == 2 else positions.amax(dim=(0, 2))[:, None]


def _decoder_start(defaults: GenerationDefaults) -> int:
    if defaults.decoder_start is None:
        raise InputMismatchError(
            "the model's config has no decoder_start_token_id: pass decoder_input_ids as an input"
        )
    return defaults.decoder_start


def _check_length(length: int, prefill: Call, decode: Call) -> None:
    """Check that all tokens have a position and a cache entry. The last new token needs no cache entry."""
    longest, capacity = prefill.record.defaults.longest, decode.record.capacity
    together = f"the prompt and the new tokens are {length:,} tokens in total"
    if longest is not None and length > longest:
        raise InputMismatchError(f"{together}, but the model has {longest:,} positions")
    if capacity is not None and length - 1 > capacity:
        raise InputMismatchError(f"{together}, but the static cache has room for {capacity:,}")


def generate(
    bundle: Bundle | str | os.PathLike[str],
    prompts: Any = None,
    *,
    max_new_tokens: int,
    checkpoint: CheckpointSource | None = None,
    temperature: float | None = None,
    top_k: int | None = None,
    top_p: float | None = None,
    seed: int = 0,
    eos: Sequence[int] | None = None,
    inputs: Mapping[str, torch.Tensor] | None = None,
    devices: str | Mapping[str, str] | None = None,
    trust: bool = False,
) -> Generated:
    """Generate tokens with a language model, without the model's package.

    Without temperature, top_k and top_p, the most likely token is chosen at each step. Beam search is not
    supported. Prompts of different lengths are padded, and the padding is masked. If the program does not
    support padding, such prompts raise an error.

    Args:
        bundle: A bundle of prefill and decode, or its archive, from `fakexport export --workload generate`.
        prompts: The token ids of one or several prompts; None for a model without text input.
        max_new_tokens: Maximum number of new tokens.
        checkpoint: The weights, as for `bind`. Default: the weights of the bundle.
        temperature, top_k, top_p, seed: As for `Sampling`. If any of the first three is passed, tokens are
            sampled, and the other two default to the model's generation config.
        eos: Tokens that end a sequence. Default: from the model's generation config; `()` for none.
        inputs: Other inputs of prefill by name, such as `pixel_values`.
        devices: Mapping of devices, as for `bind`.
        trust: As for `load`.

    Returns:
        The new tokens of each sequence.

    Raises:
        ValueError, TypeError: There is no prompt, a prompt does not consist of token ids, a number is out of
            range, or `devices` is passed without a checkpoint.
        InputMismatchError: There are more tokens than positions or cache entries, or the prompts do not fit
            the program.
        DeployError: The bundle has no matching prefill and decode programs, or the generation config forbids
            every token.
        ArchiveError, BindError, CheckpointError: As for `load_bundle` and `bind`.
        WeightsNotBoundError: The program has no weights.

    Example:
        >>> generate("llama.pt2", [1, 2, 3], max_new_tokens=5, checkpoint="llama/").tokens  # doctest: +SKIP
        ((4, 8, 15, 16, 23),)
    """
    sampling = Sampling(temperature, top_k, top_p, seed)
    found = bundle if isinstance(bundle, Bundle) else load_bundle(bundle, trust=trust)
    found = with_weights(found, checkpoint, devices)
    return Generator(found)(prompts, max_new_tokens=max_new_tokens, sampling=sampling, eos=eos, inputs=inputs)
