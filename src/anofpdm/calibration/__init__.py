"""Calibration of a model on a cohort's image-level labels, and the file that holds it."""
