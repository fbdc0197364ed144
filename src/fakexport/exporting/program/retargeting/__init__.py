"""Move a program to other devices, verify it there, and find nodes that still use the old devices."""
