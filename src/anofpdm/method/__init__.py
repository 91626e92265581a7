"""The method: evidence gathered in the forward process of a diffusion model, read with image-level labels only."""

from anofpdm.labels import HEALTHY, NULL, UNHEALTHY
from anofpdm.method.calibration import Calibration, calibrate
from anofpdm.method.evidence import Evidence
from anofpdm.method.gather import forward_evidence
from anofpdm.network.schedule import NoiseSchedule

__all__ = ["HEALTHY", "NULL", "UNHEALTHY", "Calibration", "Evidence", "NoiseSchedule", "calibrate", "forward_evidence"]
