"""Checks of source files and of network access."""
