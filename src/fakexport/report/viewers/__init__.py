"""Write a program in the formats of graph viewers."""

from .model_explorer import model_explorer_files
