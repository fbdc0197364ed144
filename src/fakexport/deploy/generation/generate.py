"""Generate tokens with a bundle, from its archive or as it is."""

from __future__ import annotations

import os
from collections.abc import Mapping, Sequence
from typing import Any

import torch

from fakexport.archive import Bundle, bind, load_bundle
from fakexport.error import InvalidValue
from fakexport.weights import CheckpointSource

from .generator import Generated, Generator
from .sampling import Sampling


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
        UnboundProgram: there are no weights.

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
