"""What commands leave in their output folders, and small disks to put such folders on."""

import contextlib
import hashlib
import json
import os
import re
import subprocess
from pathlib import Path

from safetensors import safe_open


def snapshot(folder: Path) -> frozenset[tuple[Path, int]]:
    """Path and modification time of every file; files that appear or vanish meanwhile may be missing."""
    entries = set()
    for place, _, names in os.walk(folder):  # which ignores folders that vanish
        for path in (Path(place, name) for name in names):
            with contextlib.suppress(OSError):
                entries.add((path, path.stat().st_mtime_ns))
    return frozenset(entries)


def temporary_files(folder: Path) -> list[Path]:
    """Files that are being written, or were when the command was killed."""
    return sorted(folder.rglob(".*.tmp"))


def hash_files(folder: Path) -> dict[str, str]:
    """Relative path to hash of every file but locks, without measured times and the path of the folder."""
    files = sorted(path for path in folder.rglob("*") if path.is_file() and path.name != ".lock")
    contents = {path.relative_to(folder).as_posix(): _without_times(path) for path in files}
    return {
        name: hashlib.sha256(content.replace(str(folder).encode(), b"OUT")).hexdigest()
        for name, content in contents.items()
    }


def _without_times(path: Path) -> bytes:
    data = path.read_bytes()
    if path.suffix == ".safetensors":  # written with the entries of its metadata in any order
        with safe_open(path, "pt") as file:
            tensors = {name: file.get_tensor(name).numpy().tobytes() for name in file.keys()}  # noqa: SIM118
            return repr(sorted([*tensors.items(), *file.metadata().items()])).encode()
    if path.suffix == ".json":
        return json.dumps(_without_seconds(json.loads(data)), sort_keys=True).encode()
    if path.suffix == ".html":
        return re.sub(rb"<dt>seconds</dt><dd>[\d.]+</dd>", b"", data)
    return data


def _without_seconds(payload: object) -> object:
    if isinstance(payload, dict):
        return {name: _without_seconds(value) for name, value in payload.items() if name != "seconds"}
    if isinstance(payload, list):
        return [_without_seconds(value) for value in payload]
    return payload


class Disk:
    """A tmpfs, which can be made full or read-only."""

    def __init__(self, folder: Path, kilobytes: int):
        self.folder = folder
        folder.mkdir(parents=True, exist_ok=True)
        _run("mount", "-t", "tmpfs", "-o", f"size={kilobytes}k", "tmpfs", str(folder))

    def resize(self, kilobytes: int) -> None:
        _run("mount", "-o", f"remount,size={kilobytes}k", str(self.folder))

    def set_writable(self, writable: bool) -> None:
        _run("mount", "-o", f"remount,{'rw' if writable else 'ro'}", str(self.folder))

    def used(self) -> int:
        """Kilobytes."""
        status = os.statvfs(self.folder)
        return (status.f_blocks - status.f_bfree) * status.f_frsize // 1024

    def unmount(self) -> None:
        _run("umount", "-l", str(self.folder))


def _run(*command: str) -> None:
    try:
        done = subprocess.run(command, capture_output=True, text=True, check=False)
    except FileNotFoundError as error:
        raise OSError(f"{command[0]} is not installed") from error
    if done.returncode:
        raise OSError(f"{' '.join(command)}: {done.stderr.strip()}")
