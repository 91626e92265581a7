"""AnoFPDM: lesion masks in brain MRI from image-level labels only."""

__version__ = "0.1.0"
