"""Training: batches, steps, saves, log."""
