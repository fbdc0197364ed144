"""LoRA adapters for transformers models."""
