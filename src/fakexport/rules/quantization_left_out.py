"""FE105: the config describes a quantized model, and the model was built unquantized."""

from fakexport.rules.rule import Rule

RULE = Rule(
    code="FE105",
    name="quantization_left_out",
    severity="warning",
    message="quantized model checked without its quantization",
    why="""
The config has a `quantization_config`, or the headers of the weights on the hub show packed integers or
8-bit floats: the published weights are in fp8, int4 or another packed format, and the deployed model
calls quantized operators. An `hf:` source builds such a model with the quantizer of transformers. It could
not here, and the note says why: a package is missing, the target has no device that the method needs, or
the config does not say how the weights are packed. So the model was built with plain weights in the
model's dtype. Operators, bytes, memory and state dict keys are those of the
unquantized model. That is a different model, so this warning counts: the report is not clean, and the
exit code is 1.
""",
    how_to_repair="""
Install the package that the note names, or check for a device that it names. For a method that transformers
builds nowhere without its GPU, write a factory that builds the quantized model, for example with
`torchao.quantization.quantize_`, and check `file.py:factory`. To check the unquantized model on purpose,
remove `quantization_config` from a copy of the config.
""",
    failing_model=None,
    repair=None,
    fails_on="never",
    fault="inputs",
)
