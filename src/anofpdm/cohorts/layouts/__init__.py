"""Folder layouts of data sets, one module each."""
