"""The plugin of pytest, which pytest finds by its entry point."""
