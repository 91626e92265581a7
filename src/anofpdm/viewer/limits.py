"""How much a server takes. Every number has a sentence that a person sees when it is reached."""

from dataclasses import dataclass

MIB = 1 << 20


@dataclass(frozen=True)
class Limits:
    upload_bytes: int = 1024 * MIB  # of one request: all files of a scan
    voxels: int = 400**3  # of one file, as its header declares
    unpacked_bytes: int = 4096 * MIB  # of a zip, as its table of contents declares
    zip_contents_bytes: int = 12 * MIB  # of that table itself, which is read whole
    waiting: int = 20  # scans in the queue
    uploads: int = 16  # at the same time
    free_bytes: int = 512 * MIB  # of the disk, left alone
    idle_seconds: float = 60.0  # without a byte of an upload
    upload_seconds: float = 3600.0  # for a whole upload
    attempts: int = 3  # a scan that ended the server or its worker so often is given up
    connections: int = 400
