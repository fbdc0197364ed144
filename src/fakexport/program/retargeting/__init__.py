"""Putting a program on other devices, proving it there, and telling what names the old ones."""
