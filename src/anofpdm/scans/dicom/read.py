"""DICOM in: a folder or zip with the series of one study becomes one volume a modality, all on one grid.

dicom_source.py finds files, dicom_header.py reads what they say, dicom_series.py puts slices in order and in space,
dicom_match.py tells which series is which modality; dicom_out.py writes results that a DICOM viewer lays over the scan.
World space is that of NIfTI: what a correct converter writes and what is read here agree to rounding.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np

from anofpdm.errors import ScanError
from anofpdm.scans.dicom.header import Frame, Tags, is_decodable, read_tags, silence_libraries
from anofpdm.scans.dicom.match import Preview, choose, preview_rows
from anofpdm.scans.dicom.series import OFF_PLACE_MM, Series, find_series
from anofpdm.scans.dicom.source import Source, listed, open_source
from anofpdm.scans.grid import Grid, corner_gap_mm
from anofpdm.scans.nifti import Volume, write_nifti
from anofpdm.util.text import printable

REMEDY = (
    "convert them (e.g. with dcm2niix), register and resample them onto one grid (ANTs, FLIRT, your own tool), "
    "and give the NIfTI files"
)


@dataclass(frozen=True)
class Study:
    """Series of one study, one a modality, on one grid. Only headers have been read so far."""

    path: Path  # the folder or zip
    series: dict[str, Series]  # by modality, in the order asked for

    @property
    def reference(self) -> Series:
        """The series whose grid all volumes and results have."""
        return next(iter(self.series.values()))

    @property
    def grid(self) -> Grid:
        return self.reference.grid

    def to_dict(self) -> dict[str, dict[str, str | int | None]]:
        """Which series was used as which modality, for a summary; nothing of the patient."""
        labels = {name: one.label for name, one in self.series.items()}
        return {
            name: {"series": one.number, "description": one.description, "uid": one.uid} for name, one in labels.items()
        }

    def volumes(self) -> dict[str, Volume]:
        with open_source(self.path) as source:
            return {name: Volume(self.path, _voxels(source, one), self.grid) for name, one in self.series.items()}

    def convert(self, folder: Path) -> dict[str, Path]:
        """A NIfTI file for each modality, into `folder`."""
        files = {}
        with open_source(self.path) as source:
            for name, one in self.series.items():
                files[name] = folder / f"{name}.nii"
                write_nifti(files[name], _voxels(source, one), self.grid)
        return files


def read_study(path: Path, modalities: Sequence[str], override: Mapping[str, str] | None = None) -> Study:
    """Find the series of each modality; `override` says which it is by number, UID or description: {"flair": "3"}."""
    with open_source(path) as source:
        series = _all_series(source)
    try:
        chosen = choose(series, modalities, override or {})
        for modality, one in chosen.items():
            if one.problem is not None:
                raise ScanError(f"{modality}, {one.label}: {one.problem}")
        _check_one_grid(chosen)
    except ScanError as problem:
        raise ScanError(f"{path}: {problem}") from None
    return Study(path, chosen)


def preview(path: Path, modalities: Sequence[str], override: Mapping[str, str] | None = None) -> Preview:
    """What `read_study` would do with each series, and why; what is unclear is said, not refused."""
    with open_source(path) as source:
        series = _all_series(source)
    try:
        return Preview(preview_rows(series, modalities, override or {}), source.skipped)
    except ScanError as problem:
        raise ScanError(f"{path}: {problem}") from None


def _all_series(source: Source) -> list[Series]:
    series = find_series(source)
    if not series:
        others = (
            f"; not DICOM images: {listed([*source.names, *source.skipped])}" if source.names or source.skipped else ""
        )
        raise ScanError(f"{source.path}: no DICOM image in it{others}; check the path, or export the study again")
    scans = {one.label.study: one for one in series if one.label.kind == "MR"}
    if len(scans) > 1:
        files = [one.frames[0].file for one in scans.values()]
        raise ScanError(
            f"{source.path}: holds {len(scans)} studies ({listed(files)} are of different ones); "
            "give each a folder or zip of its own"
        )
    return series


def _check_one_grid(chosen: Mapping[str, Series]) -> None:
    (first_name, first), *others = chosen.items()
    for name, one in others:
        if one.shape != first.shape:
            sizes = [" x ".join(map(str, each.shape)) for each in (one, first)]
            difference = f"{sizes[0]} voxels against {sizes[1]}"
        elif (gap := corner_gap_mm(first.grid.affine, one.grid.affine, first.shape)) > OFF_PLACE_MM:
            difference = f"their corners are {gap:.3g} mm apart"
        elif first.label.space and one.label.space and first.label.space != one.label.space:
            difference = "they have different frames of reference, so the patient may have moved between them"
        else:
            continue
        raise ScanError(
            f"{name}, {one.label}, is not on the grid of {first_name}, {first.label} ({difference}); {REMEDY}"
        )


# ---- voxels ----------------------------------------------------------------------------------------------------------


def _voxels(source: Source, series: Series) -> np.ndarray:
    """[column, row, slice]: the file's integers where nothing scales them, else float32; bright is high."""
    places: dict[str, list[int]] = {}
    for place, frame in enumerate(series.frames):
        places.setdefault(frame.file, []).append(place)
    planes = {}
    for file, its_places in places.items():
        pixels = _pixels(source, file, series)
        for place in its_places:
            planes[place] = _scaled(pixels[series.frames[place].index or 0], series.frames[place])
    volume: np.ndarray = np.stack([planes[place] for place in range(len(planes))]).transpose(2, 1, 0)
    if series.frames[0].inverted:
        volume = volume.max() - volume if volume.dtype.kind == "f" else _inverted(volume)
    return volume


def _scaled(plane: np.ndarray, frame: Frame) -> np.ndarray:
    if (frame.slope, frame.intercept) == (1.0, 0.0):
        return plane
    scaled: np.ndarray = plane * np.float64(frame.slope) + frame.intercept
    return scaled.astype(np.float32)


def _inverted(volume: np.ndarray) -> np.ndarray:
    """The darkest becomes 0."""
    return (int(volume.max()) - volume.astype(np.int64)).astype(np.int32)


def _pixels(source: Source, file: str, series: Series) -> np.ndarray:
    """[frame, row, column] of one file."""
    tags = read_tags(source, file, pixels=True)
    _check_can_be_decoded(tags, source, file)
    try:
        with silence_libraries():
            pixels: np.ndarray = tags.pixel_array
    except Exception as problem:  # whatever a decoder raises on damaged data
        raise ScanError(
            f"{source.path}: {printable(file)}: its pixels are cut short or damaged ({type(problem).__name__}); "
            "copy it again"
        ) from None
    frames = max(frame.index or 0 for frame in series.frames if frame.file == file) + 1
    pixels = pixels.reshape(-1, *pixels.shape[-2:])
    if pixels.shape[1:] != series.frames[0].size or len(pixels) < frames:
        raise ScanError(f"{source.path}: {printable(file)} has changed since it was looked at; start again")
    return pixels


def _check_can_be_decoded(tags: Tags, source: Source, file: str) -> None:
    if is_decodable(tags):
        return
    syntax = tags.file_meta.TransferSyntaxUID
    raise ScanError(
        f"{source.path}: {printable(file)} is packed as {printable(syntax.name)}, which cannot be unpacked here; "
        "install a decoder (pip install pylibjpeg pylibjpeg-libjpeg pylibjpeg-openjpeg), "
        "or unpack it first (gdcmconv --raw)"
    )
