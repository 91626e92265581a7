"""Sets of optional modalities that a student is evaluated without."""

from collections.abc import Sequence

from anofpdm.errors import ConfigError
from anofpdm.student.student import Student
from anofpdm.util.sets import subsets

EVERY = "every"  # without each set of the optional modalities


def missing_sets(words: Sequence[str], student: Student | None) -> list[tuple[str, ...]]:
    """From words such as t1,t1ce; in the order of the student's modalities, each set once."""
    if not words:
        return []
    optional = () if student is None else student.config.optional
    if not optional:
        raise ConfigError("--without: the model has no student with optional modalities (anofpdm distill --optional)")
    if EVERY in words:
        return [some for some in subsets(optional) if some]
    return list(dict.fromkeys(_parse(word, optional) for word in words))


def _parse(word: str, optional: tuple[str, ...]) -> tuple[str, ...]:
    names = {name.strip() for name in word.split(",")}
    if unknown := sorted(names - set(optional)):
        raise ConfigError(
            f"--without {word}: {', '.join(unknown)!r} is not optional; choose from {', '.join(optional)}, or {EVERY}"
        )
    return tuple(name for name in optional if name in names)


def name_without(student: str, missing: Sequence[str]) -> str:
    """For folders and tables."""
    return f"{student}-without-{'-'.join(missing)}" if missing else student
