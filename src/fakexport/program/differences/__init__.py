"""What differs between two programs, as data."""
