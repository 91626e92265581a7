"""Sets of names."""

import itertools
from collections.abc import Sequence


def subsets(names: Sequence[str]) -> list[tuple[str, ...]]:
    """All of them, from the empty one to the whole."""
    return [some for size in range(len(names) + 1) for some in itertools.combinations(names, size)]
