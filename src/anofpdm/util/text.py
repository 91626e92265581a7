"""Text from files and headers, made safe to print."""


def printable(text: str) -> str:
    """One line: control characters and undecodable bytes become question marks."""
    return "".join(letter if letter.isprintable() else "?" for letter in text).strip()


def count_noun(count: int, noun: str) -> str:
    return f"{count} {noun}" if count == 1 else f"{count} {noun}s"
