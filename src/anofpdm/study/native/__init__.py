"""Whole scans, from their files to masks in native space to the scores of `anofpdm score`, for each engine."""
