"""Scores of masks and maps against the truth."""
