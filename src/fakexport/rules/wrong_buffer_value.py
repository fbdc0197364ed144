"""FE920: a tensor that no checkpoint contains has another value than the model's code computes."""

from fakexport.rules.rule import Rule

RULE = Rule(
    code="FE920",
    name="wrong_buffer_value",
    severity="error",
    message="buffer differs from what its code computes",
    why="""
A non-persistent buffer, or a tensor that is a plain attribute, is in no state dict: only the constructor
computes it. A model that is built on the meta device and then gets memory with `to_empty()` runs its
constructor without data, and loading a checkpoint fills the weights alone. What is left is whatever was in
memory: rotary frequencies (`inv_freq`), attention masks, scales. Nothing raises; the loss or the output is
wrong. `fakexport verify-buffers` and `fakexport.verify_buffers` compute the right values from the code.
""",
    how_to_repair="""
Compute the tensor again after the memory is there, in the method that initializes the weights
(`init_weights`, `reset_parameters`), or call `fakexport.verify_buffers(model, repair=True)` once after
loading. If the difference is wanted, pass a reference that has it.
""",
    failing_model=None,
    repair=None,
    fails_on="never",
    links=(
        "https://github.com/huggingface/transformers/issues/45902",
        "https://github.com/huggingface/transformers/issues/48892",
        "https://github.com/pytorch/torchtitan/issues/4783",
    ),
)
