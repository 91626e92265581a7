"""What a student is, in words, for the folder it lies in."""

import math
from collections.abc import Mapping
from typing import Any

from anofpdm.student.model import Student

FILE = "README.md"


def card(student: Student, taught: Mapping[str, Any]) -> str:
    config, found = student.config, student.calibration
    schooling = taught["options"]["schooling"]
    limits = [f"{schooling['steps']} steps"] if schooling["steps"] else []
    limits += [f"{schooling['minutes']:g} minutes"] if schooling["minutes"] else []
    beside = ", ".join(f"{offset:g}" for offset in config.neighbours_mm)
    seen = f", with the slices at {beside} mm beside it" if beside else ""
    rated = (
        "its accuracy on other patients is not known: all slices were of one"
        if math.isnan(found.accuracy)
        else f"on patients left out of the fit, accuracy {found.accuracy:.3f}, AUC {found.auc:.3f}"
    )
    return f"""# A student

It draws lesions in one look: a U-Net of width {config.width} that sees {", ".join(config.modalities)} of a slice of
{config.size} x {config.size}{seen}.

 - Taught by the model in the folder above (`{student.teacher_sha256}`), on that model's own masks.
 - Slices it learned from: {taught["slices"]}, {taught["with_a_lesion"]} of them with a lesion by its teacher.
 - Image-level labels are all that people gave. No drawn lesion was used.
 - At most {" or ".join(limits)} of batch {schooling["batch"]}, rounds: {taught["options"]["rounds"]}, learning rate
   {schooling["learning_rate"]:g}, seed {schooling["seed"]}; anofpdm {taught["anofpdm"]}.
 - Calibrated on {found.n_healthy} healthy and {found.n_unhealthy} unhealthy slices; {rated}.

Limits: it repeats its teacher's mistakes, knows scans like the ones it learned from, and does not say why (with
`--explain`, `anofpdm segment` asks its teacher). A research tool, not a medical device. Settings: `config.json`.
"""
