"""Reading and writing NIfTI: strict checks of header and length, geometry preserved."""

import contextlib
import gzip
import logging
import math
import stat
import struct
from collections.abc import Iterator
from dataclasses import dataclass
from io import BufferedIOBase
from pathlib import Path

import nibabel as nib
import numpy as np
from zlib_ng import gzip_ng, zlib_ng

from anofpdm.errors import ScanError
from anofpdm.scans.grid import Grid, grid_of
from anofpdm.util.files import write_atomically

MAX_VOXELS = 512**3  # more than any head scan at 0.5 mm; checked before allocation
MAX_BYTES = 4 * MAX_VOXELS  # of voxel data
MAX_OFFSET = 64 << 20  # of the voxel data, after header extensions
COMPRESSION = 2  # level of zlib-ng: the size of zlib's level 1 in half the time
# Types that NIfTI, or many of its readers, do not support, and their replacements.
STORED_AS = {"b1": np.uint8, "f2": np.float32, "i8": np.int32}
HEADERS = {348: (nib.Nifti1Header, b"n+1"), 540: (nib.Nifti2Header, b"n+2")}
SILENT = logging.Logger("silent", logging.CRITICAL + 1)


@dataclass(frozen=True)
class Volume:
    path: Path
    voxels: np.ndarray  # [i, j, k], the file's own axis order; the file's integers, or float32
    grid: Grid


def read_volume(path: Path, *, allow_constant: bool = False) -> Volume:
    """One 3D image. `allow_constant` is for masks, which may be empty; a constant scan is refused."""
    with _opened(path) as file:
        header, shape, stored = _read_declared(file)
        grid = grid_of(header, shape, path)
        if not allow_constant:
            _check_varied(stored)  # before memory is allocated for scaled values
        voxels = _scaled(header, stored)
        if not allow_constant:
            _check_varied(voxels)
    return Volume(path, voxels, grid)


def read_grid(path: Path) -> Grid:
    """From the header alone."""
    with _opened(path) as file:
        header, _ = _read_header(file)
        shape = _shape(header)
        _stored_type(header)
        return grid_of(header, shape, path)


def write_nifti(path: Path, voxels: np.ndarray, where: Grid | np.ndarray) -> None:
    """Save `voxels` [i, j, k] on a grid (or with an affine), atomically; equal input gives equal bytes."""
    grid = where if isinstance(where, Grid) else Grid.from_affine(voxels.shape, where)
    if voxels.shape != grid.shape:
        raise ValueError(f"voxels of shape {voxels.shape} do not fill a grid of {grid.shape}")
    voxels = voxels.astype(STORED_AS.get(voxels.dtype.str[1:], voxels.dtype), copy=False)
    header = _header_for_results(grid.header, voxels.dtype)
    kind = nib.Nifti2Image if isinstance(header, nib.Nifti2Header) else nib.Nifti1Image
    # The input may have trailing axes of length 1; the result gets them too.
    image = kind(voxels.reshape(grid.header.get_data_shape()), grid.affine, header)
    data = image.to_bytes()
    if path.name.endswith(".gz"):
        data = zlib_ng.compress(data, COMPRESSION, wbits=31)  # gzip, without a time stamp
    write_atomically(path, data)


def _header_for_results(header: nib.Nifti1Header, dtype: np.dtype) -> nib.Nifti1Header:
    """The input's header without what describes its values rather than its geometry."""
    result = header.copy()
    result.set_data_dtype(dtype)
    result.set_slope_inter(None, None)
    result.set_intent("none")
    result["cal_min"] = result["cal_max"] = 0
    result["descrip"] = b"anofpdm"
    result["vox_offset"] = 0
    result.extensions.clear()
    result.check_fix(SILENT, error_level=logging.CRITICAL + 1)  # fixes harmless oddities that nibabel would warn about
    return result


@contextlib.contextmanager
def _opened(path: Path) -> Iterator[BufferedIOBase]:
    """Decompressed where the content, not the name, is that of a gzip file."""
    try:
        mode, size = path.stat().st_mode, path.stat().st_size
        if not (stat.S_ISREG(mode) or stat.S_ISDIR(mode)):  # it might never end
            raise ScanError("a pipe or a device, not a file; save the scan to a file first")
        with path.open("rb") as file:
            is_gzip = file.read(2) == b"\x1f\x8b"
            file.seek(0)
            if is_gzip and size > MAX_OFFSET + MAX_BYTES:  # endless zeros, for example
                raise ScanError(f"{size >> 20:,} MiB, more than a head scan has; give one 3D volume per file")
            yield gzip_ng.GzipFile(fileobj=file) if is_gzip else file
    except ScanError as problem:
        raise ScanError(f"{path}: {problem}") from None
    except FileNotFoundError:
        raise ScanError(f"{path}: no such file; check the path") from None
    except IsADirectoryError:
        raise ScanError(f"{path}: a folder; a NIfTI file is expected") from None
    except EOFError:
        raise ScanError(f"{path}: truncated, the file ends too early; copy or download it again") from None
    except (gzip.BadGzipFile, zlib_ng.error) as problem:  # type: ignore[misc]  # a class, contrary to its stub
        raise ScanError(f"{path}: its compressed data is corrupt ({problem}); copy or download it again") from None
    except OSError as problem:
        reason = problem.strerror or problem
        raise ScanError(f"{path}: cannot be read ({reason}); check the disk and permissions") from None


def _read_declared(file: BufferedIOBase) -> tuple[nib.Nifti1Header, tuple[int, int, int], np.ndarray]:
    """Header, checked shape, and voxels of exactly as many bytes as the header declares."""
    header, read_so_far = _read_header(file)
    shape, stored = _shape(header), _stored_type(header)
    count = math.prod(shape) * stored.itemsize
    if count > MAX_BYTES:
        size = " x ".join(map(str, shape))
        raise ScanError(f"{size} voxels of {stored} are {count >> 20:,} MiB; save it as float32 or smaller")
    offset = float(header["vox_offset"]) or header.single_vox_offset  # some tools write 0 for the default
    if not header.single_vox_offset <= offset <= MAX_OFFSET:
        raise ScanError(f"its header lets voxels begin at byte {offset:g}, so it is damaged; copy it again")
    skip = int(offset) - read_so_far
    if len(file.read(skip)) < skip:
        raise EOFError
    data = file.read(count)
    if len(data) < count:
        raise ScanError(f"truncated, {len(data)} of {count} voxel bytes; copy or download it again")
    if file.read(1):  # which also verifies the checksum of compressed data
        raise ScanError("contains more data than its header declares, so it is damaged; copy it again")
    return header, shape, np.frombuffer(data, stored).reshape(shape, order="F")


def _read_header(file: BufferedIOBase) -> tuple[nib.Nifti1Header, int]:
    start = file.read(4)
    if not start:
        raise ScanError("the file is empty; copy or download it again")
    if len(start) < 4:
        raise EOFError
    order = next((order for order in "<>" if struct.unpack(f"{order}i", start)[0] in HEADERS), None)
    if order is None:
        raise ScanError(f"not a NIfTI file (its first bytes are {start.hex(' ')}); convert it, e.g. with dcm2niix")
    (length,) = struct.unpack(f"{order}i", start)
    block = start + file.read(length - 4)
    if len(block) < length:
        raise EOFError
    kind, magic = HEADERS[length]
    header = kind(block, order, check=False)
    if bytes(header["magic"].item()).rstrip(b"\0\r\n\x1a") != magic:
        raise ScanError("not a single-file NIfTI (wrong magic); convert .hdr/.img pairs to .nii.gz first")
    return header, length


def _shape(header: nib.Nifti1Header) -> tuple[int, int, int]:
    axes = int(header["dim"][0])
    if not 1 <= axes <= 7:
        raise ScanError(f"its header declares {axes} dimensions, so it is damaged; copy it again")
    declared = tuple(int(n) for n in header["dim"][1 : 1 + axes])
    size = " x ".join(map(str, declared))
    if min(declared) < 0:
        raise ScanError(f"its header declares {size} voxels, so it is damaged; copy it again")
    if min(declared) == 0:
        raise ScanError(f"empty, {size} voxels; export it again")
    if axes < 2:
        raise ScanError(f"a single row of voxels ({size}); give a slice or a 3D scan")
    if math.prod(declared[3:]) > 1:
        raise ScanError(f"{axes}D ({size}); split it and give one 3D volume per file (fslsplit, nib-split)")
    if math.prod(declared) > MAX_VOXELS:
        raise ScanError(f"declares {size} voxels, more than a head scan has ({MAX_VOXELS:,}); resample it")
    return declared[0], declared[1], declared[2] if axes > 2 else 1


def _stored_type(header: nib.Nifti1Header) -> np.dtype:
    try:
        stored: np.dtype = header.get_data_dtype()
    except (nib.spatialimages.HeaderDataError, KeyError):
        code = int(header["datatype"])
        raise ScanError(f"its header has an unknown voxel type ({code}); copy it again") from None
    if stored.kind not in "iuf" or stored.itemsize > 8:
        raise ScanError(f"voxels of type {stored} (colour, complex or over 64 bits); export it as integers or floats")
    return stored


def _check_varied(voxels: np.ndarray) -> None:
    if voxels.min() == voxels.max():
        raise ScanError(f"every voxel is {voxels.flat[0]}, an empty scan; export it again")


def _scaled(header: nib.Nifti1Header, voxels: np.ndarray) -> np.ndarray:
    """In native byte order, scaled as the header declares."""
    stored = voxels.dtype
    if not stored.isnative:
        voxels = voxels.astype(stored.newbyteorder("="))
    slope, inter = float(header["scl_slope"]), float(header["scl_inter"])
    if slope == 0 or math.isnan(slope):  # means unscaled in the standard
        slope, inter = 1.0, 0.0
    if not (math.isfinite(slope) and math.isfinite(inter)):
        raise ScanError(f"its header scales voxels by {slope} and {inter}, so it is damaged; copy it again")
    if (slope, inter) != (1.0, 0.0):
        exact = np.float32 if stored.itemsize <= 2 else np.float64
        voxels = np.multiply(voxels, slope, dtype=exact)
        voxels += exact(inter)
    if voxels.dtype.kind == "f":
        with np.errstate(over="ignore"):
            voxels = voxels.astype(np.float32, copy=False)
        finite = np.isfinite(voxels).ravel(order="F")  # in the order of the file, hence without a copy
        if count := finite.size - np.count_nonzero(finite):
            first = ", ".join(str(index) for index in np.unravel_index(finite.argmin(), voxels.shape, order="F"))
            raise ScanError(
                f"{count} voxels are NaN or infinite, the first at voxel ({first}); "
                "replace them, e.g. with 0 outside the head (fslmaths -nan)"
            )
    return voxels
