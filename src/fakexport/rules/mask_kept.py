"""FE908: the program keeps a causal mask that eager mode drops."""

from fakexport.rules.rule import Rule

RULE = Rule(
    code="FE908",
    name="mask_kept",
    severity="warning",
    message="eager mode drops a mask of the program",
    why="""
Before attention with `sdpa`, transformers looks at the values of `attention_mask`. Where nothing is padded it
passes no mask at all, and leaves it to the attention module to be causal. A module with `is_causal=False`
then lets tokens see those after them, although the model made a causal mask. With a padded row, or with
`attn_implementation="eager"`, the same model keeps the mask and its tokens see only those before them. A
trace cannot know what is padded, so a program always keeps the mask, also one of stock `torch.export`. For
inputs without padding its results are not those of eager mode. Known models: the text encoder of AIMv2, and
ColPali without `token_type_ids`.
""",
    how_to_repair="""
Decide which of the two the weights were trained for. If it is the causal mask, the program is right: load
the model with `attn_implementation="eager"` where it runs in eager mode, or set `"attn_implementation":
"eager"` in its config, and both compute the same. If tokens see all others, write a factory in which the
model makes a mask that is not causal.
""",
    failing_model=None,
    repair=None,
    fails_on="never",
    links=("https://huggingface.co/docs/transformers/attention_interface",),
)
