"""Synthetic brains with lesions, for people without data and for tests."""
