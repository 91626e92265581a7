"""Helpers independent of scans: atomic files, locks, worker pools, processes, drawing, progress, text."""
