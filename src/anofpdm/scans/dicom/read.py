"""Reading DICOM: a folder or zip with the series of one study becomes one volume per modality.

source.py finds files, header.py reads their tags, series.py sorts slices and computes affines, match.py assigns series
to modalities, seg.py writes results as DICOM. World coordinates are those of NIfTI (RAS+), as a converter writes them.
"""

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np

from anofpdm.errors import ScanError
from anofpdm.scans.dicom.header import is_decodable, read_tags, silence_libraries
from anofpdm.scans.dicom.match import choose, explain_ignored, preview_lines
from anofpdm.scans.dicom.series import MAX_OFFSET_MM, Series, find_series
from anofpdm.scans.dicom.source import Source, listed, open_source
from anofpdm.scans.grid import Grid, corner_gap_mm
from anofpdm.scans.modalities import InputModalities, as_inputs
from anofpdm.scans.nifti import Volume, write_nifti
from anofpdm.util.text import printable

REMEDY = "segment it with --raw auto, or register and resample the series onto one grid and give the NIfTI files"

# Takes the path of a study, its series, the modalities, and those that the user assigned. Returns UIDs by modality.
ImageChooser = Callable[[Path, Sequence[Series], InputModalities, Mapping[str, str]], dict[str, str]]


@dataclass(frozen=True)
class DicomStudy:
    """Series of one study, one per modality. Only headers are read until `volumes` or `convert`."""

    path: Path  # the folder or zip
    series: dict[str, Series]  # by modality, in the requested order; optional ones may be missing
    notes: tuple[str, ...] = ()  # lines on series chosen by their images, and on those that are not used

    @property
    def reference(self) -> Series:
        """The series whose grid is that of results, and of all volumes where the series are on one grid."""
        return next(iter(self.series.values()))

    @property
    def grid(self) -> Grid:
        return self.reference.grid

    @property
    def on_one_grid(self) -> bool:
        return _grid_problem(self.series) is None

    def only(self, modality: str) -> "DicomStudy":
        """With one series, which is then the reference."""
        return replace(self, series={modality: self.series[modality]})

    def to_dict(self) -> dict[str, dict[str, Any]]:
        """The series of each modality, for a summary; without patient data."""
        labels = {name: series.label for name, series in self.series.items()}
        return {
            name: {"series": label.number, "description": label.description, "uid": label.uid}
            for name, label in labels.items()
        }

    def volumes(self) -> Iterator[tuple[str, Volume]]:
        """By modality."""
        grid = self.grid if self.on_one_grid else None
        with open_source(self.path) as source:
            for name, series in self.series.items():
                yield name, Volume(self.path, _voxels(source, series), grid or series.grid)

    def convert(self, folder: Path) -> dict[str, Path]:
        """Write a NIfTI file per modality to `folder`."""
        files = {name: folder / f"{name}.nii" for name in self.series}
        for name, volume in self.volumes():
            write_nifti(files[name], volume.voxels, volume.grid)
        return files


def read_study(
    path: Path,
    modalities: InputModalities | Sequence[str],
    override: Mapping[str, str] | None = None,
    choose_by_image: ImageChooser | None = None,
) -> DicomStudy:
    """Find the series of each modality; `override` gives some by number, UID or description: {"flair": "3"}.

    Series that no name identifies are chosen by `choose_by_image` (raw/unnamed_dicom.py), and series may then lie on
    different grids. Without it, they must lie on one.
    """
    wanted, given = as_inputs(modalities), override or {}
    with open_source(path) as source:
        every = _all_series(source)
    try:
        by_image = {} if choose_by_image is None else choose_by_image(path, every, wanted, given)
        chosen = choose(every, wanted, {**given, **by_image})
        for modality, series in chosen.items():
            if series.problem is not None:
                raise ScanError(f"{modality}, {series.label}: {series.problem}")
        if choose_by_image is None and (gap := _grid_problem(chosen)) is not None:
            raise ScanError(f"{gap}; {REMEDY}")
    except ScanError as problem:
        raise ScanError(f"{path}: {problem}") from None
    notes = [f"{chosen[name].label} is used as {name}, by its image" for name in by_image]
    return DicomStudy(path, chosen, (*notes, *explain_ignored(every, chosen, wanted.optional)))


def read_series(path: Path, series: Series) -> Volume:
    with open_source(path) as source:
        return Volume(path, _voxels(source, series), series.grid)


def preview(path: Path, modalities: Sequence[str], override: Mapping[str, str] | None = None) -> list[str]:
    """How `read_study` would use each series, and why, as a table in plain text; problems are listed, not raised."""
    with open_source(path) as source:
        every, skipped = _all_series(source), list(source.skipped)
    try:
        lines = preview_lines(every, modalities, override or {})
    except ScanError as problem:
        raise ScanError(f"{path}: {problem}") from None
    return [*lines, f"skipped, not DICOM: {listed(skipped)}"] if skipped else lines


def _all_series(source: Source) -> list[Series]:
    every = find_series(source)
    if not every:
        others = [*source.names, *source.skipped]
        instead = f" (found: {listed(others)})" if others else ""
        raise ScanError(f"{source.path}: no DICOM image{instead}; check the path, or export the study again")
    files = {series.label.study: series.frames[0].file for series in every if series.label.kind == "MR"}
    if len(files) > 1:
        raise ScanError(
            f"{source.path}: contains {len(files)} studies (see {listed([*files.values()])}); "
            "give one folder or zip per study"
        )
    return every


def _grid_problem(chosen: Mapping[str, Series]) -> str | None:
    """How the first series that is not on the reference's grid differs from it."""
    (first_name, first), *others = chosen.items()
    for name, other in others:
        if other.shape != first.shape:
            difference = "{} x {} x {} voxels, not {} x {} x {}".format(*other.shape, *first.shape)
        elif (gap := corner_gap_mm(first.grid.affine, other.grid.affine, first.shape)) > MAX_OFFSET_MM:
            difference = f"their corners are {gap:.3g} mm apart"
        elif first.label.space and other.label.space and first.label.space != other.label.space:
            difference = "different frames of reference, so the patient may have moved"
        else:
            continue
        return f"{name}, {other.label}, is not on the grid of {first_name}, {first.label} ({difference})"
    return None


def _voxels(source: Source, series: Series) -> np.ndarray:
    """[column, row, slice]: the file's integers if unscaled, else float32; high values are bright."""
    pixels = {file: _pixels(source, file, series) for file in dict.fromkeys(frame.file for frame in series.frames)}
    planes = []
    for frame in series.frames:
        plane = pixels[frame.file][frame.index or 0]
        if (frame.slope, frame.intercept) != (1.0, 0.0):
            plane = (plane * np.float64(frame.slope) + frame.intercept).astype(np.float32)
        planes.append(plane)
    volume: np.ndarray = np.stack(planes).transpose(2, 1, 0)
    if series.frames[0].inverted:  # the highest value becomes 0
        exact = volume if volume.dtype.kind == "f" else volume.astype(np.int64)
        volume = (exact.max() - exact).astype(np.float32 if volume.dtype.kind == "f" else np.int32)
    return volume


def _pixels(source: Source, file: str, series: Series) -> np.ndarray:
    """[frame, row, column] of one file."""
    tags, where = read_tags(source, file, pixels=True), f"{source.path}: {printable(file)}"
    try:
        with silence_libraries():
            pixels: np.ndarray = tags.pixel_array
    except Exception as problem:  # decoders raise many types on damaged data
        if not is_decodable(tags):
            raise ScanError(
                f"{where} is compressed as {printable(tags.file_meta.TransferSyntaxUID.name)}, which cannot be decoded "
                "here; install a decoder (pip install pylibjpeg pylibjpeg-libjpeg pylibjpeg-openjpeg), or decompress "
                "it first (gdcmconv --raw)"
            ) from None
        raise ScanError(
            f"{where}: its pixels are truncated or damaged ({type(problem).__name__}); copy it again"
        ) from None
    frames = max(frame.index or 0 for frame in series.frames if frame.file == file) + 1
    pixels = pixels.reshape(-1, *pixels.shape[-2:])
    if pixels.shape[1:] != series.frames[0].size or len(pixels) < frames:
        raise ScanError(f"{where} has changed since its header was read; try again")
    return pixels
