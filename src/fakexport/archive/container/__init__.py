"""The zip container: a reader that expects the worst, a writer that leaves all or nothing. Free of torch."""
