"""Text from files and headers, made safe to print."""


def printable(text: str) -> str:
    """One line: control characters and undecodable bytes become question marks."""
    return "".join(letter if letter.isprintable() else "?" for letter in text).strip()
