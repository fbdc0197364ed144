"""Folders with the config of a small model and its processor files, saved by transformers."""

from __future__ import annotations

import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import transformers
from tokenizers import Tokenizer, models, pre_tokenizers

from tests.architectures.architecture import Architecture

WORDS = "abcdefghijklmnopqrstuvwxyz"
BASE = ("<unk>", "<s>", "</s>", "<pad>")


def tokenizer(*special: str) -> Any:
    """A tokenizer of single letters, with special tokens from id 4 on."""
    vocabulary = {token: number for number, token in enumerate([*BASE, *special, *WORDS])}
    inner = Tokenizer(models.WordLevel(vocabulary, unk_token="<unk>"))
    inner.pre_tokenizer = pre_tokenizers.Whitespace()
    return transformers.PreTrainedTokenizerFast(
        tokenizer_object=inner,
        unk_token="<unk>",
        bos_token="<s>",
        eos_token="</s>",
        pad_token="<pad>",
        extra_special_tokens=list(special),
    )


def folder_of(
    folder: Path,
    model_type: str,
    processor_class: str,
    part: Any,
    *,
    tokens: tuple[str, ...] = (),
    settings: Mapping[str, Any] | None = None,
    **config: Any,
) -> Path:
    """Write a folder as repositories have it: a config, a processor of images or sounds, and a tokenizer.

    Args:
        part: The image processor or feature extractor.
        tokens: Special tokens of the tokenizer. Without any, there is no tokenizer.
        settings: Settings of the processor as a whole.
        config: Changes of the config of the small model.
    """
    written = {**Architecture(model_type, "", True).settings, **config}
    (folder / "config.json").write_text(json.dumps(written))
    part.save_pretrained(folder)
    path = folder / "preprocessor_config.json"
    path.write_text(json.dumps({**json.loads(path.read_text()), "processor_class": processor_class}))
    if tokens:
        tokenizer(*tokens).save_pretrained(folder)
        whole = {"processor_class": processor_class, **(settings or {})}
        (folder / "processor_config.json").write_text(json.dumps(whole))
    return folder
