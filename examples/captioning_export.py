"""Writes what `captioning_generate.py` needs: a bundle, a checkpoint, some images. Needs transformers.

    PYTHONPATH=examples python examples/captioning_export.py FOLDER

The bundle has both halves, without weights; the checkpoint is of the whole model, in the layout of the hub.
`eager.safetensors` is what `generate` of transformers writes about the images, to compare.
"""

import sys
from pathlib import Path

import torch
from captioning import captioner, decoder, encoder
from safetensors.torch import save_file

import fakexport as fe

IMAGES, NEW_TOKENS = 3, 24
DIMS = {
    "encode": ["pixel_values.0=2..64"],
    "decode": ["input_ids.0=2..64", "input_ids.1=2..256", "encoder_hidden_states.0=2..64"],
}


def export(folder, **sizes):
    halves = {
        method: fe.export(lambda factory=factory: factory(**sizes), dynamic_shapes=DIMS[method])
        for method, factory in (("encode", encoder), ("decode", decoder))
    }
    # In the whole model the encoder's weights begin with `encoder.`; those of `Decoder` have its names.
    fe.save_bundle(halves, folder / "captioner.pt2", prefixes={"encode": "encoder."})


def write_weights(folder, model):
    model.save_pretrained(folder / "checkpoint")


def write_eager(folder, model, images):
    save_file({"pixel_values": images}, folder / "images.safetensors")
    captions = model.generate(pixel_values=images, max_new_tokens=NEW_TOKENS, do_sample=False)
    save_file({"captions": captions}, folder / "eager.safetensors")


def main(folder):
    torch.manual_seed(0)
    model = captioner()
    export(folder)
    write_weights(folder, model)
    write_eager(folder, model, torch.randn(IMAGES, 3, 224, 224))


if __name__ == "__main__":
    Path(sys.argv[1]).mkdir(parents=True, exist_ok=True)
    main(Path(sys.argv[1]))
