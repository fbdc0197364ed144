"""Generate tokens with ONNX Runtime and numpy alone, as with any ONNX file that has Optimum's names.

    python examples/onnx_generate.py model.onnx 5,17,8,42

The model is one file for the prompt and for every token after it: its cache may be empty. Prompts of
different lengths are padded on the left.
"""

import sys

import numpy as np
import onnxruntime


def empty_cache(session, batch):
    """The keys and values before the first call, with a length of 0: input name -> array."""
    sizes = {"batch_size": batch, "past_sequence_length": 0}
    kinds = {"tensor(float)": np.float32, "tensor(float16)": np.float16}
    return {
        value.name: np.zeros([sizes.get(size, size) for size in value.shape], kinds[value.type])
        for value in session.get_inputs()
        if value.name.startswith("past_key_values.")
    }


def generate(session, input_ids, attention_mask, max_new_tokens):
    """The new tokens, `[batch, max_new_tokens]`: always the most likely one."""
    names = {value.name for value in session.get_inputs()}
    cache = empty_cache(session, len(input_ids))
    outputs = ["logits", *(name.replace("past_key_values", "present") for name in cache)]
    position_ids = np.maximum(attention_mask.cumsum(axis=1) - 1, 0)
    new = []
    for _ in range(max_new_tokens):
        inputs = {"input_ids": input_ids, "attention_mask": attention_mask, "position_ids": position_ids}
        read = {name: array for name, array in inputs.items() if name in names}
        logits, *present = session.run(outputs, {**read, **cache})
        cache = dict(zip(cache, present, strict=True))
        input_ids = logits[:, -1].argmax(axis=-1, keepdims=True)
        position_ids = position_ids[:, -1:] + 1
        attention_mask = np.concatenate([attention_mask, np.ones_like(input_ids)], axis=1)
        new.append(input_ids)
    return np.concatenate(new, axis=1)


def main(path, prompt):
    session = onnxruntime.InferenceSession(path, providers=["CPUExecutionProvider"])
    input_ids = np.array([[int(token) for token in prompt.split(",")]])
    print(*generate(session, input_ids, np.ones_like(input_ids), max_new_tokens=12)[0])


if __name__ == "__main__":
    main(*sys.argv[1:])
