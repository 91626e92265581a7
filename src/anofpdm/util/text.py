"""Text from files and headers, made safe to print, and messages without the folders of a machine."""

import re
from collections.abc import Iterable

FOLDERS = re.compile(r"(?:(?<=[\s\"'(=])|^)(?:~|[A-Za-z]:)?[/\\](?!\s)(?:[^\s/\\]*[/\\])*")  # not the slash in 1 / 2


def printable(text: str) -> str:
    """One line: control characters and undecodable bytes become question marks."""
    return "".join(letter if letter.isprintable() else "?" for letter in text).strip()


def count_noun(count: int, noun: str) -> str:
    return f"{count} {noun}" if count == 1 else f"{count} {noun}s"


def file_name(path: str) -> str:
    """The last part of a path of any operating system."""
    return re.split(r"[/\\]", path)[-1]


def remove_folders(text: str, files: Iterable[str] = ()) -> str:
    """A message without the folders of the files in it: pages are shared, and folder names can identify people."""
    for path in sorted(files, key=len, reverse=True):
        text = text.replace(path, file_name(path))
    where, colon, rest = text.partition(": ")
    return FOLDERS.sub("", f"{file_name(where)}{colon}{rest}" if colon else text)
