"""Segments a scan: NIfTI or DICOM in, lesion mask and report out. Start with model.py."""
