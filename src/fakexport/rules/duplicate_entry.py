"""FE707: two checkpoint entries map to the same weight."""

from fakexport.rules.rule import Rule

RULE = Rule(
    code="FE707",
    name="duplicate_entry",
    severity="error",
    message="two checkpoint entries map to one weight",
    why="""
The tables by which transformers renames state dict keys map two entries to the same name: an old and a
new one, or one with the prefix of the base model and one without it. Only one of them can be the weight.
A loader takes the first or the last, and nothing shows which one was trained. It happens when a
checkpoint is saved into the folder of another one, or when a script adds renamed entries and keeps the
old ones.
""",
    how_to_repair="""
Remove one of the two entries, and save the checkpoint again into an empty folder.
""",
    failing_model="""
import torch
from transformers import BertConfig, BertModel

SIZES = {"num_hidden_layers": 0, "hidden_size": 8, "vocab_size": 16, "num_attention_heads": 1}


def factory():
    model = BertModel(BertConfig(**SIZES))
    return model, (torch.zeros(1, 4, dtype=torch.int64),)


def checkpoint():
    model = BertModel(BertConfig(**SIZES))
    weights = {f"bert.{name}": tensor for name, tensor in model.state_dict().items()}
    weights["pooler.dense.bias"] = torch.ones(8)  # <- FE707
    return weights
""",
    repair="""
-    weights["pooler.dense.bias"] = torch.ones(8)
+    weights["bert.pooler.dense.bias"] = torch.ones(8)
""",
    fails_on="weights",
    fault="checkpoint",
)
