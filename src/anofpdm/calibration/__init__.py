"""Calibration of a model on a cohort's image-level labels, and its file."""
