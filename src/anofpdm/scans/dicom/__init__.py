"""DICOM: a study read into volumes, and results written back as DICOM-SEG."""
