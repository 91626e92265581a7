"""What is known of a segmented scan without its images: the content of its summary.json."""

import json
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Annotated, Any

import msgspec
from msgspec import UNSET, Meta, UnsetType

from anofpdm.util.files import read_regular_file
from anofpdm.util.text import remove_folders

Quantity = Annotated[float, Meta(ge=0, le=1e300)]  # finite
Count = Annotated[int, Meta(ge=0, lt=2**53)]  # JavaScript's largest exact integer


class InputFile(msgspec.Struct):
    file: str
    sha256: str
    series: int | UnsetType | None = UNSET  # of DICOM, as the next two
    description: str | UnsetType = UNSET
    uid: str | UnsetType = UNSET


class Summary(msgspec.Struct, kw_only=True):
    """The fields of the file, in their order. Those with a default may be absent, as in files of earlier versions."""

    volume_ml: Quantity
    estimated_dice: float | None = None  # None: unknown
    findings: Count = 0
    slices: Count = 0  # that were analysed
    slices_detected: Count = 0
    model: str = ""  # its name
    settings: dict[str, Any] = {}  # everything but the scan that determines the result
    inputs: dict[str, InputFile] = {}  # by modality
    missing_modalities: list[str] = []  # optional modalities of the model that the scan lacks
    warnings: list[str] = []
    study: dict[str, Any] | UnsetType = UNSET  # of a raw study: what was done to it
    seconds: Quantity | None = None

    @classmethod
    def read(cls, path: Path) -> "Summary":
        return cls.decode(read_regular_file(path))

    @classmethod
    def decode(cls, data: bytes) -> "Summary":
        """ValueError names the field."""
        try:
            return msgspec.convert(json.loads(data), cls)
        except (RecursionError, ValueError) as problem:
            raise ValueError(f"not a summary of anofpdm segment ({problem})") from None

    def encode(self) -> bytes:
        return json.dumps(msgspec.to_builtins(self), indent=2).encode()

    def public_warnings(self) -> list[str]:
        """With file names, but without folders: pages are shared."""
        files = [source.file for source in self.inputs.values()]
        return [remove_folders(text, files) for text in self.warnings]


def flatten_settings(settings: Mapping[str, Any], prefix: str = "") -> Iterator[tuple[str, Any]]:
    """Names and values; the name of a nested setting starts with that of its parent: decision.mask.threshold."""
    for name, value in settings.items():
        if isinstance(value, Mapping):
            yield from flatten_settings(value, f"{prefix}{name}.")
        else:
            yield f"{prefix}{name}", value
