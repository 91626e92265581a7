"""Model card of a student, written into its folder."""

import math

from anofpdm import __version__
from anofpdm.student.model import Student
from anofpdm.student.training import StudentTrainingConfig

FILE = "README.md"


def student_card(student: Student, training: StudentTrainingConfig, n_slices: int, n_with_lesion: int) -> str:
    config, calibration = student.config, student.calibration
    limits = [f"{training.steps} steps"] if training.steps else []
    limits += [f"{training.minutes:g} minutes"] if training.minutes else []
    offsets = ", ".join(f"{offset:g}" for offset in config.neighbours_mm)
    neighbours = f", and the slices at {offsets} mm from it" if offsets else ""
    rating = (
        "accuracy on other patients unknown, as all slices are of one patient"
        if math.isnan(calibration.accuracy)
        else f"accuracy {calibration.accuracy:.3f} and AUC {calibration.auc:.3f}, cross-validated over patients"
    )
    return f"""# Student network

A U-Net of width {config.width} that segments a slice in a single pass. Its input is {", ".join(config.modalities)}
of a slice of {config.size} x {config.size} pixels{neighbours}.

 - Teacher: the diffusion model in the parent folder (`{student.teacher_sha256}`). Its masks are the pseudo-labels.
 - Training slices: {n_slices}, {n_with_lesion} of them with a lesion in the pseudo-label.
 - Human annotation: image-level labels only. No lesion mask was used.
 - Training: at most {" or ".join(limits)}, batch size {training.batch}, learning rate {training.learning_rate:g},
   seed {training.seed}; anofpdm {__version__}.
 - Calibration: {calibration.n_healthy} healthy and {calibration.n_unhealthy} unhealthy slices; {rating}.

Limits: the student reproduces its teacher's errors, and is valid only for scans like those it was trained on. It does
not explain its masks; `anofpdm segment --explain` computes an explanation with the diffusion model. A research tool,
not a medical device. All settings: `config.json`.
"""
