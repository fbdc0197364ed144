"""A plugin of fakexport. It is imported by every command that reads its files, so it imports nothing."""
