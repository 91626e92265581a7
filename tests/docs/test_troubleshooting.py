"""The troubleshooting page quotes messages that the program has."""

import re
import subprocess
import sys
from pathlib import Path

import pytest

from docs.tools.messages import VALUE, collect_messages, error_classes, template

ROOT = Path(__file__).parents[2]
PAGE = ROOT / "docs" / "troubleshooting.md"
TEXTS = [" ".join(message.text.split()) for message in collect_messages()]


def quoted() -> list[str]:
    """First cells of the tables of messages."""
    tables = re.findall(r"^\| message \|.*\n\|.*\n((?:\|.*\n?)+)", PAGE.read_text(), re.MULTILINE)
    return [re.match(r"\| `([^`]+)` \|", row)[1] for table in tables for row in table.splitlines()]


def exists(quote: str) -> bool:
    """Every value that is left out on the page is one in the source."""
    return any(quote in text for text in TEXTS)


@pytest.mark.parametrize("quote", quoted())
def test_a_quoted_message_exists(quote):
    assert exists(quote), "not in the source; `python docs/tools/messages.py` lists all messages"


def test_no_quote_is_too_short_to_mean_something():
    assert all(len(re.findall(r"[a-z]{2,}", quote.replace(VALUE, ""))) >= 2 for quote in quoted())


def test_an_unknown_message_is_noticed():
    assert not exists("the moon is too bright")


def test_messages_are_those_of_errors(tmp_path):
    """Against messages that are really raised."""
    from anofpdm.errors import ScanError
    from anofpdm.scans.nifti import read_volume

    with pytest.raises(ScanError) as problem:
        read_volume(tmp_path / "a.nii")
    assert str(problem.value).replace(str(tmp_path / "a.nii"), VALUE) in TEXTS
    assert {"AnoFPDMError", "ScanError", "ScanWarning", "BadParameter"} <= error_classes()


def test_templates():
    import ast

    parse = lambda text: template(ast.parse(text, mode="eval").body)  # noqa: E731
    assert parse("'a' f'b{1:.2f}c' + 'd'") == "ab...cd"
    assert parse("f'{{x}}'") == "{x}"
    assert parse("problem") == ""


def test_the_script_lists_them():
    done = subprocess.run([sys.executable, "docs/tools/messages.py"], cwd=ROOT, capture_output=True, text=True)
    assert done.returncode == 0
    assert len(done.stdout.splitlines()) >= len(quoted())
