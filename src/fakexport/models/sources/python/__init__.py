"""Load factories from Python files and packages, and load operator libraries."""
