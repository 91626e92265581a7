"""The three image-level labels. NULL is a label of its own: 'not told', which is also what no guidance means."""

HEALTHY = 0
UNHEALTHY = 1
NULL = 2

LABEL_NAMES = ("healthy", "unhealthy", "unlabelled")  # LABEL_NAMES[label] is how a label is written in files
