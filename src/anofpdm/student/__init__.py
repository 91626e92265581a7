"""A small network trained on the diffusion model's own masks: one evaluation per slice instead of about a hundred."""
