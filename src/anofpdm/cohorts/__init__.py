"""Many scans: found in the layout they were downloaded in, prepared once, opened in a moment.

Opening a cohort needs numpy alone; finding and preparing scans (plan.py, prepare.py) needs nibabel too.
"""

from anofpdm.cohorts.store import Cohort, open_cohort

__all__ = ["Cohort", "open_cohort"]
