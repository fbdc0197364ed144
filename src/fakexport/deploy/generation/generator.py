"""Generate tokens: prefill reads the prompt, then decode reads one token after another."""

from __future__ import annotations

import os
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Literal

import torch

from fakexport.archive import Bundle, bind, load_bundle
from fakexport.documents import GenerationDefaults
from fakexport.error import InvalidValue
from fakexport.weights import CheckpointSource

from ..signature import UnsuitableInputs
from .calls import Call, calls_of, check_same_cache
from .prompts import prompt_inputs, token_lists
from .sampling import Place, Sampling, restricted

_GREEDY = Sampling()
Stop = Literal["eos", "length"]


@dataclass(frozen=True)
class Generated:
    """What was generated for each prompt, in their order.

    Args:
        tokens: The new tokens of each sequence; the last one is that which ended it, if one did.
        stops: Why each sequence ended: `eos`, or `length` for the number that was asked for.
        notes: Settings of the model's generation config that are not followed, one sentence each.
    """

    tokens: tuple[tuple[int, ...], ...]
    stops: tuple[Stop, ...]
    notes: tuple[str, ...] = ()


class Generator:
    """A bundle of prefill and decode, with its weights, that generates again and again.

    Args:
        bundle: With weights, from `bind` or an archive that has them.
    Raises:
        DeployError: its programs do not fit together, or do not generate.
        UnboundProgram: it has no weights.

    Example:
        >>> Generator(load_bundle("bound.pt2"))([1, 2, 3], max_new_tokens=5).tokens  # doctest: +SKIP
        ((4, 8, 15, 16, 23),)
    """

    def __init__(self, bundle: Bundle) -> None:
        self._prefill, self._decode = calls_of(bundle)
        for call in (self._prefill, self._decode):
            _ = call.run  # Refuses here what has no weights.
        check_same_cache(self._prefill, self._decode)

    @property
    def defaults(self) -> GenerationDefaults:
        """What the model's own configuration says about generation."""
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
        """Return the tokens that follow each prompt, as `generate` does; the arguments are the same."""
        if max_new_tokens < 1:
            raise InvalidValue(f"max_new_tokens is {max_new_tokens}, but must be 1 or more")
        lists, others = self._prompts(prompts), dict(inputs or {})
        stops = frozenset(self.defaults.eos if eos is None else eos)
        sampling = sampling.completed(self.defaults)
        choice = _Choice(max_new_tokens, sampling, stops, self.defaults, sampling.generator())
        # A program of one sequence takes several prompts one after the other.
        is_one_by_one = self._prefill.batch == 1 and len(lists) > 1 and not others
        batches = [[prompt] for prompt in lists] if is_one_by_one else [lists]
        rows = [
            row
            for batch in batches
            for row in choice.rows(_Run(self._prefill, self._decode, batch, others, max_new_tokens))
        ]
        return Generated(
            tokens=tuple(map(tuple, rows)),
            stops=tuple("eos" if row[-1] in stops else "length" for row in rows),
            notes=tuple(self._notes(sampling)),
        )

    def _notes(self, sampling: Sampling) -> Iterator[str]:
        for name in self.defaults.not_applied:
            yield f"{name} of the model's generation config is not applied"
        if own := self.defaults.own_generate:
            yield f"{own} has a generate of its own, which is not followed: tokens are those of its forward"
        if self.defaults.is_drawn and sampling.is_greedy:
            yield (
                "do_sample of the model's generation config is not applied: pass temperature, top_k or top_p "
                "to draw"
            )

    def _prompts(self, prompts: Any) -> list[list[int]]:
        name = self._prefill.record.prompt
        if prompts is None and name is not None:
            raise InvalidValue(f"there is no prompt: the program takes {name}")
        if prompts is not None and name is None:
            named = ", ".join(self._prefill.inputs)
            raise InvalidValue(f"the program takes no prompt of token ids: pass {named} as inputs")
        return [] if prompts is None else token_lists(prompts)


@dataclass(frozen=True)
class _Choice:
    """Which tokens are chosen, and when a sequence ends."""

    max_new_tokens: int
    sampling: Sampling
    eos: frozenset[int]
    defaults: GenerationDefaults
    generator: torch.Generator

    def rows(self, run: _Run) -> list[list[int]]:
        """Return the new tokens of each sequence of a batch."""
        rows: list[list[int]] = [[] for _ in range(run.batch)]
        is_open = [True] * run.batch
        for generated in range(self.max_new_tokens):
            is_last = generated + 1 == self.max_new_tokens
            texts = [[*start, *row] for start, row in zip(run.texts, rows, strict=True)]
            place = Place(texts, generated, is_last, run.is_after_one, self.eos)
            scores = restricted(run.scores, self.defaults, place)
            chosen = self.sampling.chosen(scores, self.generator).tolist()
            for row, token in enumerate(chosen):
                if is_open[row]:
                    rows[row].append(token)
                    is_open[row] = token not in self.eos
            if is_last or not any(is_open):
                break
            # What a sequence that has ended reads changes nothing in the others.
            run.step([token if is_open[row] else run.pad for row, token in enumerate(chosen)])
        return rows


class _Run:
    """The calls for one batch; without prompts if the program takes only other inputs."""

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
        self.pad = _padding(record.defaults)
        is_fixed = prefill.length is not None and not record.has_encoder
        from_prompts = prompt_inputs(prompts, record, is_length_fixed=is_fixed) if prompts else {}
        given = {**from_prompts, **others}
        if record.start is not None:
            if record.start in others:
                raise UnsuitableInputs(f"{record.start} is not an input of generate, which counts it")
            given[record.start] = torch.zeros(1, dtype=torch.long)
        _check_tokens(prompts, prefill)
        if record.positions in from_prompts and record.positions not in others:
            _check_positions(prefill)
        if not given:
            raise UnsuitableInputs(f"there are no inputs: the program takes {', '.join(prefill.inputs)}")
        self.batch = len(next(iter(given.values())))
        if record.has_encoder and record.tokens not in given:
            given[record.tokens] = torch.full((self.batch, 1), _decoder_start(record.defaults))
        first = given[record.tokens]
        self.is_after_one = first.shape[1] == 1
        self.texts = _texts(first, None if record.has_encoder else given.get(record.mask or ""))
        _check_length(first.shape[1] + new_tokens, prefill, decode)
        # Prefill may read one number of tokens only; decode reads the others like new ones.
        read = first.shape[1] if prefill.length is None else prefill.length
        if first.shape[1] < read:
            raise UnsuitableInputs(
                f"the program reads prompts of {read} tokens or more, got {first.shape[1]}"
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
        """Read one more token of each sequence."""
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
    """Return the tokens of each sequence without the padding before them."""
    if mask is None:
        return tokens.tolist()
    starts = (mask != 0).int().argmax(dim=1).tolist()
    return [row[start:] for row, start in zip(tokens.tolist(), starts, strict=True)]


def _check_tokens(prompts: list[list[int]], prefill: Call) -> None:
    """Refuse tokens that the model does not have: the lookup of one is an error of torch's."""
    count = prefill.vocabulary
    greatest = max(map(max, prompts), default=-1)
    if count is not None and greatest >= count:
        raise UnsuitableInputs(f"the token {greatest} does not exist: the model has {count}, from 0 on")


def _check_positions(prefill: Call) -> None:
    """Refuse to count positions that have a time, a height and a width: those of an image are not a count."""
    name = prefill.record.positions
    rank = next(len(tensor.shape) for tensor in prefill.signature.inputs if tensor.name == name)
    if rank != 2:
        raise UnsuitableInputs(
            f"the program takes {name} of {rank} dimensions, which depend on the images: pass them in "
            "`inputs`, as the model's get_rope_index returns them"
        )


def _last_positions(positions: torch.Tensor) -> torch.Tensor:
    """Return the position of the last token of each sequence, the greatest one where a token has three."""
    return positions[..., -1:] if positions.dim() == 2 else positions.amax(dim=(0, 2))[:, None]


def _padding(defaults: GenerationDefaults) -> int:
    if defaults.pad is not None:
        return defaults.pad
    return defaults.eos[0] if defaults.eos else 0


def _decoder_start(defaults: GenerationDefaults) -> int:
    if defaults.decoder_start is None:
        raise UnsuitableInputs(
            "the model's config has no decoder_start_token_id: pass decoder_input_ids as an input"
        )
    return defaults.decoder_start


def _check_length(length: int, prefill: Call, decode: Call) -> None:
    """Refuse more tokens than there are positions or places for. The last new token is not read."""
    longest, capacity = prefill.record.defaults.longest, decode.record.capacity
    together = f"prompt and new tokens are {length:,} together"
    if longest is not None and length > longest:
        raise UnsuitableInputs(f"{together}, but the model has {longest:,} positions")
    if capacity is not None and length - 1 > capacity:
        raise UnsuitableInputs(f"{together}, but the static cache holds {capacity:,}")


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
    """Return the tokens that a language model writes after each prompt. Its package need not be installed.

    Without temperature, top_k and top_p the most likely token is taken at each step. Beams are not searched.
    Prompts of unequal lengths are padded, and do not see the padding; a program that cannot leave it out
    refuses them.

    Args:
        bundle: A bundle of prefill and decode, or its archive, from `fakexport export --workload generate`.
        prompts: The token ids of a prompt, or of several; None for a model that is not given text.
        max_new_tokens: Tokens after the prompt at most.
        checkpoint: The weights, as for `bind`. Default: those of the bundle.
        temperature, top_k, top_p, seed: As for `Sampling`. With one of the first three, tokens are drawn, and
            the model's generation config says what the others are.
        eos: Tokens that end a sequence. Default: those of the model's generation config; `()` for none.
        inputs: Other inputs of prefill by name, such as `pixel_values`.
        devices: Device to device, as for `bind`.
        trust: As for `load`.
    Returns:
        The new tokens of each sequence.
    Raises:
        ValueError, TypeError: no prompt, no token ids; a number out of range; devices without a checkpoint.
        UnsuitableInputs: more tokens than positions or cache places; prompts that do not fit the program.
        DeployError: no matching prefill and decode, or the generation config forbids every token.
        ArchiveError, BindError, CheckpointError: as for `load_bundle` and `bind`.
        UnboundProgram: the program has no weights.

    Example:
        >>> generate("llama.pt2", [1, 2, 3], max_new_tokens=5, checkpoint="llama/").tokens  # doctest: +SKIP
        ((4, 8, 15, 16, 23),)
    """
    sampling = Sampling(temperature, top_k, top_p, seed)
    found = bundle if isinstance(bundle, Bundle) else load_bundle(bundle, trust=trust)
    if checkpoint is not None:
        found = bind(found, checkpoint, devices=devices)
    elif devices is not None:
        raise InvalidValue("devices apply when a checkpoint is bound, and none was given")
    return Generator(found)(prompts, max_new_tokens=max_new_tokens, sampling=sampling, eos=eos, inputs=inputs)
