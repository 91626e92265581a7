"""The troubleshooting page quotes messages that the program has."""

import re
from pathlib import Path

import pytest

from anofpdm.errors import ScanError
from anofpdm.scans.nifti import read_volume
from docs.tools.messages import VALUE, collect_messages, error_classes

PAGE = Path(__file__).parents[2] / "docs" / "troubleshooting.md"
TEXTS = [" ".join(message.text.split()) for message in collect_messages()]


def test_every_quoted_message_exists():
    """First cells of the tables of messages. Every value that is left out on the page is one in the source."""
    tables = re.findall(r"^\| message \|.*\n\|.*\n((?:\|.*\n?)+)", PAGE.read_text(), re.MULTILINE)
    quotes = [re.match(r"\| `([^`]+)` \|", row)[1] for table in tables for row in table.splitlines()]
    assert len(quotes) > 20
    for quote in quotes:  # `python docs/tools/messages.py` lists all messages
        assert any(quote in text for text in TEXTS), quote
        assert len(re.findall(r"[a-z]{2,}", quote.replace(VALUE, ""))) >= 2, f"{quote}: too short to mean something"


def test_messages_are_those_of_errors(tmp_path):
    """Against a message that is really raised."""
    with pytest.raises(ScanError) as problem:
        read_volume(tmp_path / "a.nii")
    assert str(problem.value).replace(str(tmp_path / "a.nii"), VALUE) in TEXTS
    assert {"AnoFPDMError", "ScanError", "ScanWarning", "BadParameter"} <= error_classes()
