"""A scan in, a lesion mask out."""
