"""Compare two programs, and return the differences as data."""
