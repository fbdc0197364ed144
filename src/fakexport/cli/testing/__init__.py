"""The pytest plugin, which pytest loads through an entry point."""
