"""Reading DICOM: a folder or zip with the series of one study becomes one volume per modality.

source.py finds files, header.py reads their tags, series.py sorts slices and computes affines, match.py assigns series
to modalities, seg.py writes results as DICOM. World coordinates are those of NIfTI (RAS+), as a converter writes them.
"""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import partial
from pathlib import Path

import numpy as np

from anofpdm.errors import ScanError
from anofpdm.scans.dicom.header import is_decodable, read_tags, silence_libraries
from anofpdm.scans.dicom.match import Preview, choose, explain_ignored, preview_rows
from anofpdm.scans.dicom.series import MAX_OFFSET_MM, Series, find_series
from anofpdm.scans.dicom.source import Source, listed, open_source
from anofpdm.scans.grid import Grid, corner_gap_mm
from anofpdm.scans.modalities import InputModalities, as_inputs
from anofpdm.scans.nifti import Volume, write_nifti
from anofpdm.util.text import printable

REMEDY = "segment it with --raw auto, or register and resample the series onto one grid and give the NIfTI files"


Brains = dict[str, bytes]  # extracted ones, packed (raw/brain.py)
# Takes the series, the modalities, those that the user assigned, and a function that reads a series. Returns UIDs by
# modality.
ImageChooser = Callable[
    [Sequence[Series], InputModalities, Mapping[str, str], Callable[[Series], Volume]], tuple[dict[str, str], Brains]
]


@dataclass(frozen=True)
class Study:
    """Series of one study, one per modality. Only headers are read until `volumes` or `convert`."""

    path: Path  # the folder or zip
    series: dict[str, Series]  # by modality, in the requested order; optional ones may be missing
    notes: tuple[str, ...] = ()  # lines on series chosen by their images, and on those that are not used
    brains: Brains = field(default_factory=dict)  # of series whose images were compared

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

    def only(self, modality: str) -> "Study":
        """With one series, which is then the reference."""
        return replace(self, series={modality: self.series[modality]})

    def grid_of(self, modality: str) -> Grid:
        return self.grid if self.on_one_grid else self.series[modality].grid

    def to_dict(self) -> dict[str, dict[str, str | int | None]]:
        """The series of each modality, for a summary; without patient data."""
        labels = [(name, one.label) for name, one in self.series.items()]
        return {name: {"series": one.number, "description": one.description, "uid": one.uid} for name, one in labels}

    def volumes(self) -> dict[str, Volume]:
        with open_source(self.path) as source:
            series = self.series.items()
            return {name: Volume(self.path, _voxels(source, one), self.grid_of(name)) for name, one in series}

    def convert(self, folder: Path) -> dict[str, Path]:
        """Write a NIfTI file per modality to `folder`."""
        files = {}
        with open_source(self.path) as source:
            for name, one in self.series.items():
                files[name] = folder / f"{name}.nii"
                write_nifti(files[name], _voxels(source, one), self.grid_of(name))
        return files


def read_study(
    path: Path,
    modalities: InputModalities | Sequence[str],
    override: Mapping[str, str] | None = None,
    choose_by_image: ImageChooser | None = None,
) -> Study:
    """Find the series of each modality; `override` gives some by number, UID or description: {"flair": "3"}.

    Series that no name identifies are chosen by `choose_by_image` (raw/unnamed_dicom.py), and series may then lie on
    different grids. Without it, they must lie on one.
    """
    with open_source(path) as source:
        series = _all_series(source)
    try:
        wanted = as_inputs(modalities)
        by_image, brains = dict[str, str](), Brains()
        if choose_by_image is not None:
            by_image, brains = choose_by_image(series, wanted, override or {}, partial(_read_volume, path))
        chosen = choose(series, wanted, {**(override or {}), **by_image})
        for modality, one in chosen.items():
            if one.problem is not None:
                raise ScanError(f"{modality}, {one.label}: {one.problem}")
        if choose_by_image is None and (gap := _grid_problem(chosen)) is not None:
            raise ScanError(f"{gap}; {REMEDY}")
    except ScanError as problem:
        raise ScanError(f"{path}: {problem}") from None
    notes = [f"{chosen[name].label} is used as {name}, by its image" for name in by_image]
    return Study(path, chosen, (*notes, *explain_ignored(series, chosen, wanted.optional)), brains)


def _read_volume(path: Path, series: Series) -> Volume:
    with open_source(path) as source:
        return Volume(path, _voxels(source, series), series.grid)


def preview(path: Path, modalities: Sequence[str], override: Mapping[str, str] | None = None) -> Preview:
    """How `read_study` would use each series, and why; problems are listed, not raised."""
    with open_source(path) as source:
        series = _all_series(source)
    try:
        return Preview(preview_rows(series, modalities, override or {}), source.skipped)
    except ScanError as problem:
        raise ScanError(f"{path}: {problem}") from None


def _all_series(source: Source) -> list[Series]:
    series = find_series(source)
    if not series:
        others = [*source.names, *source.skipped]
        found = f" (found: {listed(others)})" if others else ""
        raise ScanError(f"{source.path}: no DICOM image{found}; check the path, or export the study again")
    scans = {one.label.study: one for one in series if one.label.kind == "MR"}
    if len(scans) > 1:
        files = [one.frames[0].file for one in scans.values()]
        raise ScanError(
            f"{source.path}: contains {len(scans)} studies (see {listed(files)}); give one folder or zip per study"
        )
    return series


def _grid_problem(chosen: Mapping[str, Series]) -> str | None:
    """How the first series that is not on the reference's grid differs from it."""
    (first_name, first), *others = chosen.items()
    for name, one in others:
        if one.shape != first.shape:
            sizes = [" x ".join(map(str, each.shape)) for each in (one, first)]
            difference = f"{sizes[0]} voxels, not {sizes[1]}"
        elif (gap := corner_gap_mm(first.grid.affine, one.grid.affine, first.shape)) > MAX_OFFSET_MM:
            difference = f"their corners are {gap:.3g} mm apart"
        elif first.label.space and one.label.space and first.label.space != one.label.space:
            difference = "different frames of reference, so the patient may have moved"
        else:
            continue
        return f"{name}, {one.label}, is not on the grid of {first_name}, {first.label} ({difference})"
    return None


def _voxels(source: Source, series: Series) -> np.ndarray:
    """[column, row, slice]: the file's integers if unscaled, else float32; high values are bright."""
    positions: dict[str, list[int]] = {}
    for position, frame in enumerate(series.frames):
        positions.setdefault(frame.file, []).append(position)
    planes = {}
    for file, in_file in positions.items():
        pixels = _pixels(source, file, series)
        for position in in_file:
            frame = series.frames[position]
            plane = pixels[frame.index or 0]
            if (frame.slope, frame.intercept) != (1.0, 0.0):
                plane = (plane * np.float64(frame.slope) + frame.intercept).astype(np.float32)
            planes[position] = plane
    volume: np.ndarray = np.stack([planes[position] for position in range(len(planes))]).transpose(2, 1, 0)
    if series.frames[0].inverted:  # the highest value becomes 0
        exact = volume if volume.dtype.kind == "f" else volume.astype(np.int64)
        volume = (exact.max() - exact).astype(np.float32 if volume.dtype.kind == "f" else np.int32)
    return volume


def _pixels(source: Source, file: str, series: Series) -> np.ndarray:
    """[frame, row, column] of one file."""
    tags = read_tags(source, file, pixels=True)
    if not is_decodable(tags):
        syntax = printable(tags.file_meta.TransferSyntaxUID.name)
        raise ScanError(
            f"{source.path}: {printable(file)} is compressed as {syntax}, which cannot be decoded here; "
            "install a decoder (pip install pylibjpeg pylibjpeg-libjpeg pylibjpeg-openjpeg), "
            "or decompress it first (gdcmconv --raw)"
        )
    try:
        with silence_libraries():
            pixels: np.ndarray = tags.pixel_array
    except Exception as problem:  # decoders raise many types on damaged data
        raise ScanError(
            f"{source.path}: {printable(file)}: its pixels are truncated or damaged ({type(problem).__name__}); "
            "copy it again"
        ) from None
    frames = max(frame.index or 0 for frame in series.frames if frame.file == file) + 1
    pixels = pixels.reshape(-1, *pixels.shape[-2:])
    if pixels.shape[1:] != series.frames[0].size or len(pixels) < frames:
        raise ScanError(f"{source.path}: {printable(file)} has changed since its header was read; try again")
    return pixels
