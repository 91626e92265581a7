"""Scan warnings, recorded for the summary while they are issued."""

import contextlib
import warnings
from collections.abc import Iterator
from dataclasses import dataclass, field

from anofpdm.errors import ContrastWarning, ScanWarning


@dataclass
class RecordedWarnings:
    texts: list[str] = field(default_factory=list)  # each once
    contradicted: bool = False  # an image is another contrast than it was given as

    @contextlib.contextmanager
    def record(self) -> Iterator[None]:
        """Record the scan warnings of the block, then issue all its warnings again."""
        with warnings.catch_warnings(record=True) as caught:
            warnings.simplefilter("always", ScanWarning)
            yield
        of_scan = [warning for warning in caught if issubclass(warning.category, ScanWarning)]
        self.texts = list(dict.fromkeys(str(warning.message) for warning in of_scan))
        self.contradicted = any(issubclass(warning.category, ContrastWarning) for warning in of_scan)
        for warning in caught:
            warnings.warn(warning.message, warning.category, stacklevel=4)
