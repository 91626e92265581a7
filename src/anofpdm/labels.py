"""Image-level labels. NULL (unlabelled) is the label of the unconditional, that is unguided, network."""

HEALTHY = 0
UNHEALTHY = 1
NULL = 2

LABEL_NAMES = ("healthy", "unhealthy", "unlabelled")  # in files; indexed by label
