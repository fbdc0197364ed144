"""The main job, `fakexport check`: the one room that knows every step of it."""

from fakexport.checking.conductor import check, inspect

__all__ = ["check", "inspect"]
