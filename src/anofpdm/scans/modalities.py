"""Which modalities a scan must have, and which it may lack."""

from collections.abc import Collection, Sequence
from dataclasses import dataclass, replace


@dataclass(frozen=True)
class InputModalities:
    """Modalities that a model takes. The first needed one is the reference: its grid is that of the results."""

    needed: tuple[str, ...]
    optional: tuple[str, ...] = ()
    advice: str = ""  # for the user, where a needed one is missing

    @property
    def names(self) -> tuple[str, ...]:
        return (*self.needed, *self.optional)

    def select(self, given: Collection[str]) -> tuple[str, ...]:
        """Those that are given, in the order of `names`."""
        return tuple(name for name in self.names if name in given)

    def missing(self, given: Collection[str]) -> tuple[str, ...]:
        return tuple(name for name in self.names if name not in given)

    def missing_needed(self, given: Collection[str]) -> tuple[str, ...]:
        return tuple(name for name in self.needed if name not in given)

    def without(self, given: Collection[str]) -> "InputModalities":
        """The others."""
        optional = tuple(name for name in self.optional if name not in given)
        return replace(self, needed=self.missing_needed(given), optional=optional)

    def explain(self) -> str:
        """What is optional, and the advice, as the end of a message; empty where there is neither."""
        optional = f"optional: {', '.join(self.optional)}" if self.optional else ""
        return "".join(f"; {text}" for text in (optional, self.advice) if text)

    def assignments(self) -> str:
        """flair=FILE [t2=FILE], for messages."""
        return " ".join([*(f"{name}=FILE" for name in self.needed), *(f"[{name}=FILE]" for name in self.optional)])


def as_inputs(modalities: InputModalities | Sequence[str]) -> InputModalities:
    """Names alone: all are needed."""
    return modalities if isinstance(modalities, InputModalities) else InputModalities(tuple(modalities))
