"""Scores of mask files: pairs of predicted and true masks, in folders or alone, in the space of the truth."""
