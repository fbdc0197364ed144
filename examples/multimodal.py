"""An image and text through the parts of a small, untrained LLaVA, from one bundle. Needs transformers.

    python examples/multimodal.py FOLDER

Writes a config and a checkpoint as they are on the hub, exports every part of the model without weights into
one file, binds the checkpoint, and runs the parts in order: vision, then language. Prints the next tokens and
whether they are those of transformers.
"""

import sys
from pathlib import Path

import torch

import fakexport as fe

IMAGE_TOKEN, IMAGE_SIZE, PATCHES = 4, 16, 4
TEXT = [5, 17, 42, 8, 23, 61]
NEW_TOKENS = 6


def model():
    from transformers import CLIPVisionConfig, LlamaConfig, LlavaConfig, LlavaForConditionalGeneration

    sizes = {"hidden_size": 32, "intermediate_size": 64, "num_hidden_layers": 2, "num_attention_heads": 4}
    torch.manual_seed(0)
    config = LlavaConfig(
        vision_config=CLIPVisionConfig(**sizes, image_size=IMAGE_SIZE, patch_size=8),
        text_config=LlamaConfig(**sizes, vocab_size=96, max_position_embeddings=128),
        image_token_id=IMAGE_TOKEN,
        tie_word_embeddings=False,
    )
    whole = LlavaForConditionalGeneration(config).eval()
    with torch.no_grad():
        for parameter in whole.parameters():
            if parameter.dim() > 1:
                parameter.mul_(6)  # An untrained model repeats one token, whatever the image is.
    return whole


def export(folder):
    """One program for each part. Reads the config, and no weight."""
    source = f"hf:{folder / 'checkpoint'}"
    parts = {name: fe.export(source, component=name, dynamic_shapes="auto") for name in fe.components(source)}
    fe.save_bundle(parts, folder / "llava.pt2")


@torch.no_grad()
def write(folder, images):
    """Token ids, `[images, NEW_TOKENS]`: greedily the most likely next token."""
    parts = fe.bind(fe.load_bundle(folder / "llava.pt2"), folder / "checkpoint")
    vision, language = parts["vision"].module(), parts["language"].module()
    features = vision(pixel_values=images)["pooler_output"]  # once for all tokens
    ids = prompt(len(images))
    for _ in range(NEW_TOKENS):
        logits = language(input_ids=ids, attention_mask=torch.ones_like(ids), vision_pooler_output=features)[
            "logits"
        ]
        ids = torch.cat([ids, logits[:, -1:].argmax(dim=-1)], dim=1)
    return ids[:, -NEW_TOKENS:]


def prompt(images):
    return torch.tensor([[IMAGE_TOKEN] * PATCHES + TEXT] * images)


def main(folder):
    whole = model()
    whole.save_pretrained(folder / "checkpoint")
    export(folder)
    images = torch.randn(2, 3, IMAGE_SIZE, IMAGE_SIZE, generator=torch.Generator().manual_seed(1))
    written = write(folder, images)
    ids = prompt(len(images))
    eager = whole.generate(
        input_ids=ids,
        attention_mask=torch.ones_like(ids),
        pixel_values=images,
        max_new_tokens=NEW_TOKENS,
        min_new_tokens=NEW_TOKENS,
        do_sample=False,
    )[:, -NEW_TOKENS:]
    print("the same as transformers" if torch.equal(written, eager) else "not what transformers writes")
    for tokens in written.tolist():
        print(*tokens)


if __name__ == "__main__":
    Path(sys.argv[1]).mkdir(parents=True, exist_ok=True)
    main(Path(sys.argv[1]))
