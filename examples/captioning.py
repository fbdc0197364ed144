"""A small image captioner: a ViT that looks, a GPT-2 that writes, 1024 tokens. Untrained.

    fakexport check examples/captioning.py:encoder --target cpu --target H100 --dynamic pixel_values.0=1..64
    fakexport check examples/captioning.py:decoder --target cpu --target H100 \\
        --dynamic input_ids.0=1..64 --dynamic encoder_hidden_states.0=1..64 --dynamic input_ids.1=2..256

The two halves are programs of their own, because the decoder runs once for each token of the caption.
`captioning_export.py` writes both as one bundle, `captioning_generate.py` captions images with it.
"""

import torch
from torch import nn

BATCH, LONGEST_CAPTION = 4, 256
TOKENS, PAD, START, END = 1024, 0, 1, 2
PATCHES, WIDTH = 197, 768  # 14 * 14 patches of the image and the class token


def captioner(layers=12, width=WIDTH, heads=12):
    """The whole model. It writes without a key-value cache."""
    from transformers import AutoConfig, VisionEncoderDecoderConfig, VisionEncoderDecoderModel

    config = VisionEncoderDecoderConfig.from_encoder_decoder_configs(
        AutoConfig.for_model("vit", num_hidden_layers=layers, hidden_size=width, num_attention_heads=heads),
        AutoConfig.for_model(
            "gpt2",
            vocab_size=TOKENS,
            bos_token_id=START,
            eos_token_id=END,
            use_cache=False,
            n_layer=layers,
            n_embd=width,
            n_head=heads,
        ),
        decoder_start_token_id=START,
        pad_token_id=PAD,
        eos_token_id=END,
    )
    model = VisionEncoderDecoderModel(config)
    model.encoder.pooler = None  # the decoder looks at the patches
    return model.eval()


class Decoder(nn.Module):
    """The writing half with the two inputs that it needs, returning the logits alone."""

    def __init__(self, decoder):
        super().__init__()
        self.decoder = decoder

    def forward(self, input_ids, encoder_hidden_states):
        outputs = self.decoder(
            input_ids=input_ids,
            encoder_hidden_states=encoder_hidden_states,
            use_cache=False,
            return_dict=False,
        )
        return outputs[0]


def encoder(**sizes):
    return captioner(**sizes).encoder, (torch.randn(BATCH, 3, 224, 224),)


def decoder(**sizes):
    whole = captioner(**sizes)
    states = torch.randn(BATCH, PATCHES, whole.config.encoder.hidden_size)
    return Decoder(whole.decoder).eval(), (torch.full((BATCH, LONGEST_CAPTION), START), states)
