"""Emulated devices, and fake tensors and modules on them."""
