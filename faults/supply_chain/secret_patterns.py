"""Patterns of secrets, in the text and in the name of a file."""

import re
from collections.abc import Iterator
from pathlib import Path

PATTERNS = {
    "private key": r"-----BEGIN (?:[A-Z]+ )*PRIVATE KEY",
    "AWS key": r"\b(?:AKIA|ASIA)[A-Z0-9]{16}\b",
    "GitHub token": r"\b(?:gh[pousr]_[A-Za-z0-9]{36}|github_pat_[A-Za-z0-9_]{22,})",
    "GitLab token": r"\bglpat-[A-Za-z0-9_-]{20,}",
    "PyPI token": r"\bpypi-[A-Za-z0-9_-]{40,}",
    "npm token": r"\bnpm_[A-Za-z0-9]{36}\b",
    "Hugging Face token": r"\bhf_[A-Za-z0-9]{30,}\b",
    "Slack token": r"\bxox[abeoprs]-[A-Za-z0-9-]{10,}",
    "Google key": r"\bAIza[A-Za-z0-9_-]{35}\b",
    "API key": r"\bsk-[A-Za-z0-9_-]{32,}",
    "JSON web token": r"\beyJ[A-Za-z0-9_-]{10,}\.eyJ[A-Za-z0-9_-]{10,}\.[A-Za-z0-9_-]{10,}",
    "password in a URL": r"\b[a-z][a-z+]{2,}://[^\s/:@'\"{}<>]+:[^\s/:@'\"{}<>]{3,}@",
    "password": r"(?i)\b(?:password|passwd|api_key|apikey|secret_key|auth_token|access_token)\b['\"]?\s*[=:]\s*"
    r"['\"][^'\"\s{}<>]{8,}['\"]",
}
NAMES = (".env", ".netrc", ".npmrc", ".pypirc", "id_rsa", "id_ed25519", "credentials", "credentials.json")
ENDINGS = (".pem", ".key", ".p12", ".pfx", ".keystore", ".ovpn")
IGNORED = {".git", ".venv", "scratch", "demo", "dist", "__pycache__"}
CACHES = ("_cache", ".egg-info", ".hypothesis")


def files_in(root: Path) -> Iterator[Path]:
    """All files that a clone has."""
    for path in sorted(root.iterdir()):
        if path.is_symlink() or path.name in IGNORED or path.name.endswith(CACHES):
            continue
        if path.is_dir():
            yield from files_in(path)
        elif path.is_file():
            yield path


def is_secret_name(path: Path) -> bool:
    return path.name in NAMES or path.name.startswith(".env.") or path.suffix.lower() in ENDINGS


def find_secrets(text: str) -> list[str]:
    return [name for name, pattern in PATTERNS.items() if re.search(pattern, text)]
