"""Benchmarks for published numbers. Each case verifies a result before it counts or times it."""
