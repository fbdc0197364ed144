"""Build models whose config has a quantization, as transformers builds them."""
