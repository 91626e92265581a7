"""Scans with their geometry: files to voxels, voxels to network slices, and back."""

from anofpdm.scans.grid import Grid
from anofpdm.scans.nifti import read_volume, write_nifti
from anofpdm.scans.slices import AxialPlanes, Scan, mask_slices, read_scan, scan_slices

__all__ = ["AxialPlanes", "Grid", "Scan", "mask_slices", "read_scan", "read_volume", "scan_slices", "write_nifti"]
