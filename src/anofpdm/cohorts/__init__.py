"""Cohorts of scans: found in the layout of the download, prepared once, then opened quickly.

Opening a cohort needs only numpy; finding and preparing scans (plan.py, prepare.py) also needs nibabel.
"""

from anofpdm.cohorts.store import Cohort, open_cohort

__all__ = ["Cohort", "open_cohort"]
