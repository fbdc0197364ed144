"""`fakexport generate`."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from fakexport.cli import options
from fakexport.cli.isolated_work import UserCode
from fakexport.cli.streams import write_note, write_output


@options.grouped_options
def generate_command(
    bundle: Annotated[
        str,
        typer.Argument(
            metavar="BUNDLE",
            help="Archive (.pt2) written by `fakexport export --workload generate`, with or without bound "
            "weights.",
        ),
    ],
    checkpoint: options.OptionalCheckpoint = None,
    prompt_ids: Annotated[
        list[str] | None,
        typer.Option(metavar="ID,ID,...", help="Token ids of a prompt. Repeatable, for several prompts."),
    ] = None,
    prompt: Annotated[
        list[str] | None,
        typer.Option(
            metavar="TEXT", help="Prompt as text; needs `--tokenizer`. Repeatable, for several prompts."
        ),
    ] = None,
    tokenizer: Annotated[
        Path | None,
        typer.Option(
            metavar="FILE",
            help="Encode text prompts, and decode the new tokens, with the model's `tokenizer.json`.",
        ),
    ] = None,
    max_new_tokens: Annotated[int, typer.Option(metavar="N", min=1, help="Generate at most N tokens.")] = 64,
    temperature: Annotated[
        float | None, typer.Option(metavar="NUMBER", help="Sample with this temperature.")
    ] = None,
    top_k: Annotated[
        int | None, typer.Option(metavar="N", help="Sample from the N most likely tokens.")
    ] = None,
    top_p: Annotated[
        float | None,
        typer.Option(
            metavar="NUMBER", help="Sample from the most likely tokens whose probabilities add up to this."
        ),
    ] = None,
    seed: Annotated[int, typer.Option(metavar="N", help="Seed of the random numbers.")] = 0,
    eos: Annotated[
        str | None,
        typer.Option(
            metavar="ID,ID,...|none",
            help="Stop at these token ids. Default: the EOS ids of the model's generation config.",
        ),
    ] = None,
    inputs: Annotated[
        Path | None,
        typer.Option(
            metavar="FILE",
            help="Read other inputs of prefill, such as images, by name from a .safetensors file.",
        ),
    ] = None,
    devices: options.BoundDevices = None,
    trust: options.Trust = False,
    *,
    code: UserCode,
) -> None:
    """Generate tokens with a bundle of prefill and decode, without the model's package.

    Uses greedy decoding, or samples with --temperature, --top-k or --top-p. Prints one line of new token ids
    per prompt, or the decoded text with --tokenizer.
    """
    if prompt and tokenizer is None:
        raise typer.BadParameter("--prompt needs --tokenizer, the tokenizer.json of the model")
    if prompt and prompt_ids:
        raise typer.BadParameter("use either --prompt or --prompt-ids, not both")
    ids = [_ids(text, "--prompt-ids") for text in prompt_ids or []]
    stops = None if eos is None else [] if eos == "none" else _ids(eos, "--eos")

    def generated() -> tuple[tuple[str, ...], list[str]]:
        from fakexport.deploy import Tokenizer, generate, read_inputs
        from fakexport.exporting.program import WeightsNotBoundError

        words = None if tokenizer is None else Tokenizer(tokenizer)
        asked = ids if words is None or not prompt else [words.tokens(text) for text in prompt]
        try:
            found = generate(
                bundle,
                asked or None,
                max_new_tokens=max_new_tokens,
                checkpoint=checkpoint,
                temperature=temperature,
                top_k=top_k,
                top_p=top_p,
                seed=seed,
                eos=stops,
                inputs=None if inputs is None else read_inputs(inputs),
                devices=devices,
                trust=trust,
            )
        except WeightsNotBoundError as error:
            if checkpoint is not None:
                raise
            raise typer.BadParameter(
                f"{bundle} has no weights ({len(error.names)} are missing): pass the checkpoint as the "
                "second argument"
            ) from None
        lines = [
            ",".join(map(str, tokens)) if words is None else words.text(tokens) for tokens in found.tokens
        ]
        return tuple(found.notes), lines

    notes, lines = code.run(generated, "generate", runs_code=trust)
    for note in notes:
        write_note(note)
    for line in lines:
        write_output(f"{line}\n")


def _ids(text: str, option: str) -> list[int]:
    try:
        return [int(part) for part in text.split(",")]
    except ValueError:
        raise typer.BadParameter(
            f"{option} {text!r}: separate token ids with commas, such as 1,2,3"
        ) from None
