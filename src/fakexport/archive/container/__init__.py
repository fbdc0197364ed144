"""The zip container: a reader for untrusted files and an atomic writer. Free of torch."""
