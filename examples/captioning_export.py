"""Writes what `captioning_generate.py` needs: two archives, two checkpoints, some images. Needs transformers.

    PYTHONPATH=examples python examples/captioning_export.py FOLDER

The archives are exported without weights. `eager.safetensors` is what `generate` of transformers writes about
the images, to compare.
"""

import sys
from pathlib import Path

import torch
from captioning import Decoder, captioner, decoder, encoder
from safetensors.torch import save_file, save_model

import fakexport as fe

IMAGES, NEW_TOKENS = 3, 24
DIMS = {
    "encoder": ["pixel_values.0=2..64"],
    "decoder": ["input_ids.0=2..64", "input_ids.1=2..256", "encoder_hidden_states.0=2..64"],
}


def export(folder, **sizes):
    for half, factory in (("encoder", encoder), ("decoder", decoder)):
        program = fe.export(lambda factory=factory: factory(**sizes), dynamic_shapes=DIMS[half])
        fe.save(program, folder / f"{half}.pt2")


def write_weights(folder, model):
    model.encoder.save_pretrained(folder / "encoder")  # in the layout of the hub
    save_model(Decoder(model.decoder), folder / "decoder.safetensors")  # the names of the exported module


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
