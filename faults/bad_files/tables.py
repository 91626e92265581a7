"""CSV tables that users write: image-level labels, and splits."""

from collections.abc import Iterator

from faults.bad_files.base import LABELS, SPLIT, UNUSUAL, Case
from faults.bad_files.paths import put_at, with_labels, with_split

# Only faults of the file, and a few of its rows: tests/cohorts has the others.
NO_TABLES = {
    "of zeros": bytes(100), "of binary": bytes(range(256)), "in UTF-16": LABELS.encode("utf-16"), "of HTML": b"<html>",
    "of blanks": b" \n \n", "nested": b"{" * 9999, "of one long line": b"subject,label\n" + b"x" * 200_000 + b",1\n",
    "of one long quote": b'subject,slice,label\n"' + b"q0,,1\n" * 40_000,
}  # fmt: skip
BAD_LABELS = {
    "without rows": "subject,slice,label\n", "without a column": "subject,slice\nq0,1\n",
    "with a column twice": "subject,slice,label,label\nq0,1,1,0\n", "without columns": "q0,,1\n",
    "with an unknown label": LABELS + "q0,,maybe\n", "with an unknown patient": LABELS + "q9,,1\n",
    "with slice NaN": LABELS + "q0,nan,1\n", "with slice 99": LABELS + "q0,99,1\n",
    "with a slice of 5000 digits": f"{LABELS}q0,{'9' * 5000},1\n", "with a superscript": LABELS + "q0,\u00b2,1\n",
    "with NUL": LABELS + "q0\0,,1\n",
}  # fmt: skip
BAD_SPLITS = {
    "without rows": "patient,split\n", "that contradicts itself": SPLIT + "q0,test\n",
    "without one patient": SPLIT[:-8], "without a column": "patient\nq0\n",
}  # fmt: skip
VALID_LABELS = {
    "with Windows line ends": LABELS.replace("\n", "\r\n"), "with a byte-order mark": "\ufeff" + LABELS,
    "with semicolons": LABELS.replace(",", ";"), "with blanks": LABELS.replace(",", " , "),
    "with capitals": LABELS.replace("subject,slice,label", "SUBJECT,Slice,Label"),
    "with an empty line": LABELS + "\n\n,,\n", "without a final line end": LABELS.rstrip(),
}  # fmt: skip


def cases(kind: str = "CSV table") -> Iterator[Case]:
    for name, content in NO_TABLES.items():
        yield _labels(name, content, kind)
        yield _split(name, content, kind)
    for name, text in BAD_LABELS.items():
        yield _labels(name, text.encode(), kind)
    for name, text in BAD_SPLITS.items():
        yield _split(name, text.encode(), kind)
    for name, text in VALID_LABELS.items():
        yield _labels(name, text.encode(), UNUSUAL, valid=True)


def _labels(name: str, content: bytes, kind: str, *, valid: bool = False) -> Case:
    make = put_at("labels.csv", lambda path: path.write_bytes(content), with_labels)
    return Case(f"prepare labels {name}", kind, make, valid, "labels.csv", "labels")


def _split(name: str, content: bytes, kind: str) -> Case:
    make = put_at("split.csv", lambda path: path.write_bytes(content), with_split)
    return Case(f"prepare split {name}", kind, make, mentions="split.csv")
