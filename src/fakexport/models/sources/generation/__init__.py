"""Sources for prefill and decode, and the cache that connects them."""
