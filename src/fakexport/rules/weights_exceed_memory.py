"""FE503: the weights exceed the memory of their device."""

from fakexport.rules.rule import Rule

RULE = Rule(
    code="FE503",
    name="weights_exceed_memory",
    severity="warning",
    message="weights exceed device memory",
    why="""
The parameters and buffers that the device map places on one device need more bytes than that device has.
The program is exported anyway, since fake weights take no memory here; it could not be loaded there. The
sum counts a shared weight once, and it is a lower bound: activations, the cache of a language model and
the memory of the libraries are not in it. It is a warning and not an error, because the program is correct,
and because quantization or offloading after the export may make it fit.
""",
    how_to_repair="""
Halve the weights with a smaller dtype (`--dtype bfloat16`), spread them over several devices (`--target
8xH100 --device-map balanced`), or choose a device with more memory (`fakexport devices` lists them). Run
`fakexport inspect` to see which modules are the largest.
""",
    failing_model="""
import torch
from torch import nn


def factory():
    dtype = torch.float32  # 24 layers of 4.3 GB: 103 GB
    layers = [nn.Linear(32768, 32768, bias=False, dtype=dtype) for _ in range(24)]  # <- FE503
    return nn.Sequential(*layers), (torch.empty(1, 32768, dtype=dtype),)
""",
    repair="""
-    dtype = torch.float32  # 24 layers of 4.3 GB: 103 GB
+    dtype = torch.bfloat16  # 24 layers of 2.1 GB: 52 GB
""",
    fails_on="never",
    target="H100",
    fault="target",
)
