"""Synthetic brain scans with lesions, for demonstrations and tests."""
