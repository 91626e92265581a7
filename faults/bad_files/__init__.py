"""The corpus of bad files: invalid input, and some that is unusual but valid, each with a command that reads it.

All of it is generated from a few small valid files (`base.ValidFiles`).
"""

from faults.bad_files import (
    calibrations,
    cohorts,
    dicom,
    models,
    names,
    nifti,
    paths,
    results,
    scores,
    students,
    tables,
    zips,
)
from faults.bad_files.base import Case

MODULES = (nifti, paths, names, tables, models, calibrations, students, cohorts, dicom, zips, scores, results)


def all_cases() -> dict[str, Case]:
    """By name."""
    cases = [case for module in MODULES for case in module.cases()]
    by_name = {case.name: case for case in cases}
    assert len(by_name) == len(cases), "two cases have the same name"
    return by_name
