"""Exported programs: capture them from fake modules, inspect and modify them, and write them as Python."""
