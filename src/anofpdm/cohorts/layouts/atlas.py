"""ATLAS v2.0 as distributed: a BIDS tree of T1 scans below site folders, a lesion mask next to each.

Training/R001/sub-r001s001/ses-1/anat/sub-r001s001_ses-1_space-MNI152NLin2009aSym_T1w.nii.gz
                                      sub-r001s001_ses-1_space-MNI152NLin2009aSym_label-L_desc-T1lesion_mask.nii.gz
"""

from pathlib import Path

from anofpdm.cohorts.layouts import bids
from anofpdm.cohorts.subjects import Subject, with_modalities

MODALITIES = ("t1",)


def find_subjects(source: Path) -> list[Subject]:
    return with_modalities(bids.find_subjects(source), MODALITIES)
