"""Parts of multimodal models as separate sources."""
