"""Generation of small models of many families, next to transformers."""
