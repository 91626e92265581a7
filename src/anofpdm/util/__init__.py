"""Helpers that know nothing of scans: atomic files, locks, worker pools, processes, drawing, progress."""
