"""Render reports as self-contained HTML. Does not import torch."""
