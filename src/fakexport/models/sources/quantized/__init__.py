"""Build models whose config specifies a quantization, in the same way as transformers does."""
