"""Captions images with the bundle of `captioning_export.py`. Needs no transformers, and no captioning.py.

    python examples/captioning_generate.py FOLDER

Reads `images.safetensors`, writes `captions.safetensors`, and says whether they are those of transformers.
"""

import sys
from pathlib import Path

import torch
from safetensors.torch import load_file, save_file

import fakexport as fe

PAD, START, END = 0, 1, 2
NEW_TOKENS = 24
FEWEST = 2  # The program's length begins at 2: torch.export fixes a length of 1.


def load(folder):
    """The two halves with their weights, from one checkpoint."""
    bundle = fe.bind(fe.load_bundle(folder / "captioner.pt2"), folder / "checkpoint")
    return bundle["encode"].module(), bundle["decode"].module()


@torch.no_grad()
def captions(encoder, decoder, images, new_tokens=NEW_TOKENS):
    """Token ids, `[images, length]`: greedily the most likely next token, until every caption has its END."""
    states = encoder(images)["last_hidden_state"]
    ids = torch.full((len(images), 1), START)
    is_open = torch.ones(len(images), dtype=torch.bool)
    while ids.shape[1] <= new_tokens and is_open.any():
        # A token looks at those before it only: padding behind the last one changes nothing.
        padded = torch.nn.functional.pad(ids, (0, max(0, FEWEST - ids.shape[1])), value=PAD)
        logits = decoder(padded, states)[:, ids.shape[1] - 1]
        following = torch.where(is_open, logits.argmax(dim=-1), PAD)
        ids = torch.cat([ids, following[:, None]], dim=1)
        is_open &= following != END
    return ids


def main(folder):
    images = load_file(folder / "images.safetensors")["pixel_values"]
    written = captions(*load(folder), images)
    save_file({"captions": written}, folder / "captions.safetensors")
    eager = load_file(folder / "eager.safetensors")["captions"]
    print("the same as transformers" if torch.equal(written, eager) else "not what transformers writes")
    for caption in written.tolist():
        print(*caption)


if __name__ == "__main__":
    main(Path(sys.argv[1]))
