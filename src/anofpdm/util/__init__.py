"""Helpers independent of scans: atomic files, locks, worker pools, processes, memory, drawing, progress, text."""
