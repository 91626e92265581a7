"""CSV tables that users write: image-level labels, and splits."""

from collections.abc import Iterator

from faults.bad_files.base import LABELS, SPLIT, UNUSUAL, Case
from faults.bad_files.paths import put_at, with_labels, with_split

NO_TABLES = {
    "of zeros": bytes(100), "of binary": bytes(range(256)), "in UTF-16": LABELS.encode("utf-16"), "in Latin-1": b"\xe9",
    "of HTML": b"<html>", "of blanks": b" \n \n", "of a byte-order mark": b"\xef\xbb\xbf", "nested": b"{" * 9999,
    "of one long line": b"subject,label\n" + b"x" * 200_000 + b",1\n", "of quotes": b'"""""\n"',
    "of one long quote": b'subject,slice,label\n"' + b"q0,,1\n" * 40_000,
}  # fmt: skip
BAD_LABEL_ROWS = {
    "without rows": "", "without label": "q0,,\nq1,2\n", "with an unknown label": "q0,,maybe\n",
    "with a column too many": "q0,,1,0\n", "with an unknown patient": "q9,,1\n", "without a patient": ",,1\n",
    "with slice -1": "q0,-1,1\n", "with slice x": "q0,x,1\n", "with slice 1.5": "q0,1.5,1\n",
    "with slice 99": "q0,99,1\n", "with slice NaN": "q0,nan,1\n", "with slice 1e3": "q0,1e3,1\n",
    "that contradicts itself": "q0,,1\nq0,,0\n", "with a slice of 5000 digits": f"q0,{'9' * 5000},1\n",
    "with slice 2**70": f"q0,{2**70},1\n", "with a superscript": "q0,\u00b2,1\n", "with NUL": "q0\0,,1\n",
}  # fmt: skip
BAD_LABELS = {
    "without a column": "subject,slice\nq0,1\n", "with a column twice": "subject,slice,label,label\nq0,1,1,0\n",
    "with a column misspelt": "subject,slcie,label\nq0,1,1\n", "without columns": "q0,,1\n",
}  # fmt: skip
BAD_SPLITS = {
    "without rows": "patient,split\n", "with an unknown split": SPLIT + "q0,holdout\n",
    "that contradicts itself": SPLIT + "q0,test\n", "without one patient": SPLIT[:-8],
    "without a column": "patient\nq0\n", "with a column twice": "patient,split,split\nq0,val,test\n",
}  # fmt: skip
VALID_LABELS = {
    "unchanged": LABELS.encode(), "with Windows line ends": LABELS.replace("\n", "\r\n").encode(),
    "with a byte-order mark": LABELS.encode("utf-8-sig"), "with semicolons": LABELS.replace(",", ";").encode(),
    "with tabs": LABELS.replace(",", "\t").encode(), "with quotes": LABELS.replace("q0", '"q0"').encode(),
    "with blanks": LABELS.replace(",", " , ").encode(),
    "with capitals": LABELS.replace("subject,slice,label", "SUBJECT,Slice,Label").encode(),
    "with an empty line": (LABELS + "\n\n,,\n").encode(), "without a final line end": LABELS.rstrip().encode(),
    "with slice 2.0": LABELS.replace("2,", "2.0,", 1).encode(),
}  # fmt: skip


def cases(kind: str = "CSV table") -> Iterator[Case]:
    for name, content in NO_TABLES.items():
        yield _labels(name, content, kind)
        yield _split(name, content, kind)
    for name, rows in BAD_LABEL_ROWS.items():
        yield _labels(name, f"subject,slice,label\n{rows}".encode(), kind)
    for name, text in BAD_LABELS.items():
        yield _labels(name, text.encode(), kind)
    for name, text in BAD_SPLITS.items():
        yield _split(name, text.encode(), kind)
    for name, content in VALID_LABELS.items():
        yield _labels(name, content, UNUSUAL, valid=True)


def _labels(name: str, content: bytes, kind: str, *, valid: bool = False) -> Case:
    make = put_at("labels.csv", lambda path: path.write_bytes(content), with_labels)
    return Case(f"prepare labels {name}", kind, make, valid, "labels.csv", "labels")


def _split(name: str, content: bytes, kind: str) -> Case:
    make = put_at("split.csv", lambda path: path.write_bytes(content), with_split)
    return Case(f"prepare split {name}", kind, make, mentions="split.csv")
