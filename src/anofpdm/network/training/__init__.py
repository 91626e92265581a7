"""Training: batches, steps, checkpoints, logs."""
