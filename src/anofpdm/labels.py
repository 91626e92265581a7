"""Image-level labels. NULL (unlabelled) is the label of the unconditional, that is unguided, network."""

HEALTHY = 0
UNHEALTHY = 1
NULL = 2

LABEL_NAMES = ("healthy", "unhealthy", "unlabelled")  # in files; indexed by label


def estimated_note(count: int) -> str:
    """To follow a number of labelled slices."""
    return f" (labels of {count} of them estimated from those of whole scans)" if count else ""
