"""Generate tokens with an encoder and a decoder, with ONNX Runtime and numpy alone.

    python examples/onnx_seq2seq.py FOLDER 5,17,8,42

The folder has the three files that Optimum writes: the encoder, the decoder for the first tokens, and the
decoder for each token after them, which reads the cache. Here, the decoder starts with token 0.
"""

import sys

import numpy as np
import onnxruntime

FILES = ("encoder_model.onnx", "decoder_model.onnx", "decoder_with_past_model.onnx")


def opened(folder):
    """The sessions of the three files."""
    providers = ["CPUExecutionProvider"]
    return [onnxruntime.InferenceSession(f"{folder}/{file}", providers=providers) for file in FILES]


def run(session, tensors):
    """The outputs by name. Tensors that the file does not read are left out."""
    read = {value.name: tensors[value.name] for value in session.get_inputs()}
    return dict(zip([value.name for value in session.get_outputs()], session.run(None, read), strict=True))


def generate(sessions, start, max_new_tokens, **inputs):
    """Yield the most likely token of each sequence, `[batch, 1]`, and its logits.

    `start` are the first tokens of the decoder, `[batch, tokens]`. `inputs` are those of the encoder.
    """
    encoder, decoder, decoder_with_past = sessions
    tensors = {"encoder_hidden_states": run(encoder, inputs)["last_hidden_state"]}
    if "attention_mask" in inputs:
        tensors["encoder_attention_mask"] = inputs["attention_mask"]
    found = run(decoder, {"input_ids": start, **tensors})
    for left in reversed(range(max_new_tokens)):
        logits = found.pop("logits")[:, -1]
        # The cache of the encoder never changes, so only the first call returns it.
        tensors |= {name.replace("present", "past_key_values"): array for name, array in found.items()}
        token = logits.argmax(axis=-1, keepdims=True)
        yield token, logits
        if left:
            found = run(decoder_with_past, {"input_ids": token, **tensors})


def main(folder, prompt):
    input_ids = np.array([[int(token) for token in prompt.split(",")]])
    inputs = {"input_ids": input_ids, "attention_mask": np.ones_like(input_ids)}
    new = generate(opened(folder), np.zeros((1, 1), np.int64), max_new_tokens=12, **inputs)
    print(*(token.item() for token, _ in new))


if __name__ == "__main__":
    main(*sys.argv[1:])
