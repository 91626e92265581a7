"""Hand-made bugs, one at a time in a copy of the source: are they caught by the tests that should catch them?

    python -m faults.mutants                   all, in the order of the table
    python -m faults.mutants --only student/   those whose file or tests contain this text

Each row of MUTANTS is a file of src/anofpdm, the exact old text, the new text, and the test files that should fail.
caught: they do. survived: they pass. stale: the old text is no longer there exactly once, or a test file is gone: mend
the row. invalid: the tests could not run, which proves nothing. Exit code 1 unless all are caught.
"""

import argparse
import os
import shutil
import subprocess
import sys
import tempfile
from pathlib import Path

ROOT = Path(__file__).parents[1]
FAILED, LIMIT_S = 1, 600  # pytest's exit code for failed tests, which collection errors do not have; seconds a bug
MUTANTS = (
    (
        "scans/grid.py",
        "np.argmax(nib.io_orientation(self.affine)[:, 0] == 2)",
        "2",
        "segment/test_slice_distance.py raw/test_thick.py",
    ),
    (
        "scans/slices.py",
        'axcodes2ornt("SPL")',
        'axcodes2ornt("SPR")',
        "scans/test_slices.py",
    ),
    (
        "scans/slices.py",
        "(n_in - 1) / 2) * d_in",
        "n_in / 2) * d_in",
        "scans/test_slices.py",
    ),
    (
        "raw/geometry.py",
        "(np.array([i, j, k]) - 1) / 2",
        "np.array([i, j, k]) / 2",
        "raw/test_register.py raw/test_study.py",
    ),
    (
        "raw/geometry.py",
        "lps = LPS @ matrix @ LPS",
        "lps = matrix",
        "raw/test_register.py raw/test_study.py segment/test_raw_scans.py",
    ),
    (
        "cohorts/plan.py",
        "elif splits.setdefault(subject.patient, split) != split:",
        "elif False:",
        "cohorts/test_prepare.py cohorts/test_tables.py",
    ),
    (
        "cohorts/plan.py",
        "n_train = min(n_train, count - 2)",
        "pass",
        "cohorts/test_prepare.py",
    ),
    (
        "network/schedule.py",
        "return (x - spread * noise) / signal",
        "return x - spread * noise / signal",
        "network/test_schedule.py",
    ),
    (
        "study/rivals/anoddpm.py",
        "if t else 1.0",
        "if t else 0.0",
        "study/rivals/test_anoddpm.py",
    ),
    (
        "network/checkpoint.py",
        "    if _digest(tensors, header) != digest:",
        "    if False:",
        "network/test_checkpoint.py",
    ),
    (
        "method/guidance.py",
        "weight = (1 + strengths.to(x))",
        "weight = strengths.to(x)",
        "method/test_evidence.py",
    ),
    (
        "method/guidance.py",
        "LABELS = (HEALTHY, NULL)",
        "LABELS = (NULL, HEALTHY)",
        "method/test_evidence.py",
    ),
    (
        "method/running_evidence.py",
        "is_maximum = divergence > self.largest",
        "is_maximum = divergence >= self.largest",
        "method/test_evidence.py",
    ),
    (
        "method/mask.py",
        "ravel()) > limit",
        "ravel()) >= limit",
        "method/test_mask.py",
    ),
    (
        "method/mask.py",
        'mode="symmetric"',
        'mode="edge"',
        "method/test_mask.py",
    ),
    (
        "calibration/scan_labels.py",
        "estimated[rows[np.argmax(scores[rows])]]",
        "estimated[rows[np.argmin(scores[rows])]]",
        "calibration/test_scan_labels.py",
    ),
    (
        "calibration/fit_calibration.py",
        "expects.nominal_slice_mm or cohort.spacing_mm[rows]",
        "cohort.spacing_mm[rows]",
        "calibration/test_fit.py segment/test_slice_distance.py",
    ),
    (
        "calibration/fit_calibration.py",
        "return min(shares), max(shares)",
        "return min(shares), min(shares)",
        "calibration/test_fit.py segment/test_model.py",
    ),
    (
        "student/decide.py",
        "self.fewest).clamp(max=0.0)",
        "self.fewest).clamp(min=0.0)",
        "student/test_decide.py",
    ),
    (
        "student/decide.py",
        "order = slices + slices[::-1]",
        "order = slices",
        "student/test_decide.py",
    ),
    (
        "student/decide.py",
        "not_drawn = (margins >= 0) & ~masks",
        "not_drawn = ~masks",
        "student/test_decide.py",
    ),
    (
        "student/student_network.py",
        "np.full((len(pixels), len(modalities), *pixels.shape[2:]), MISSING",
        "np.full((len(pixels), len(modalities), *pixels.shape[2:]), 0.0",
        "student/test_student.py study/test_missing.py",
    ),
    (
        "segment/join.py",
        "if scan not in with_result | joined.failed.keys()]",
        "if scan in with_result | joined.failed.keys()]",
        "segment/test_join.py",
    ),
    (
        "segment/join.py",
        "items[self.number - 1 :: self.count]",
        "items[self.number :: self.count]",
        "segment/test_join.py",
    ),
    (
        "scans/findings.py",
        "start = corner + [part.start for part in box]",
        "start = np.array([part.start for part in box])",
        "report/test_page.py",
    ),
    (
        "scans/findings.py",
        "(-lesion[0], lesion[1])",
        "(lesion[0], lesion[1])",
        "report/test_page.py",
    ),
    (
        "export/whole_scan.py",
        "indices.double() * dz",
        "indices.double() * dx",
        "export/test_whole_scan.py",
    ),
    (
        "export/whole_scan.py",
        "result[:, 1] >= 0.5",
        "result[:, 1] >= 0.8",
        "export/test_whole_scan.py",
    ),
    (
        "scoring/metrics/pixels.py",
        "areas = 2 * self.tp + self.fp + self.fn",
        "areas = self.tp + self.fp + self.fn",
        "scoring/test_slice_scores.py",
    ),
    (
        "scoring/metrics/surfaces.py",
        "np.argwhere(some & ~every)",
        "np.argwhere(some)",
        "scoring/test_scan_scores.py",
    ),
    (
        "scoring/metrics/surfaces.py",
        "return max(map(_percentile_95",
        "return min(map(_percentile_95",
        "scoring/test_scan_scores.py",
    ),
    (
        "study/comparison/job.py",
        "rows = rows[Truth(cohort).available[rows]]",
        "pass",
        "study/test_protocol.py",
    ),
    (
        "viewer/access.py",
        "self.token is not None and hmac.compare_digest(text.encode(), self.token.encode())",
        "self.token is not None",
        "viewer/test_guard.py",
    ),
    (
        "bids_app/participants.py",
        "session in self.sessions",
        "session not in self.sessions",
        "bids_app/test_bids_app.py",
    ),
    (
        "fit/run_fit.py",
        "return student if same else None",
        "return student",
        "fit/test_fit.py",
    ),
)  # fmt: skip


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--only", default="", metavar="TEXT", help="rows whose file or tests contain it")
    args = parser.parse_args()
    rows = [row for row in MUTANTS if args.only in row[0] or args.only in row[3]]
    counts: dict[str, int] = {}
    with tempfile.TemporaryDirectory() as folder:
        source = Path(shutil.copytree(ROOT / "src", Path(folder) / "src"))
        for row in rows:
            outcome = try_mutant(source, *row)
            counts[outcome] = counts.get(outcome, 0) + 1
            print(f"{outcome:8}  {row[0]}: {row[1]}  ->  {row[2]}", flush=True)
    print(", ".join(f"{count} {outcome}" for outcome, count in sorted(counts.items())))
    return int(counts != {"caught": len(rows)})


def try_mutant(source: Path, file: str, old: str, new: str, tests: str) -> str:
    path, files = source / "anofpdm" / file, [ROOT / "tests" / name for name in tests.split()]
    text = path.read_text() if path.is_file() else ""
    if text.count(old) != 1 or not all(test.is_file() for test in files):
        return "stale"
    path.write_text(text.replace(old, new))
    try:
        return run_tests(source, files)
    finally:
        path.write_text(text)


def run_tests(source: Path, files: list[Path]) -> str:
    """The copy comes first on the path, and writes no bytecode, which could outlive a bug by its time stamp."""
    where = {"PYTHONPATH": f"{source}{os.pathsep}{ROOT}", "PYTHONDONTWRITEBYTECODE": "1"}
    command = [sys.executable, "-m", "pytest", "-x", "-q", "-p", "no:cacheprovider", *map(str, files)]
    try:
        done = subprocess.run(
            command, cwd=ROOT, env={**os.environ, **where}, capture_output=True, timeout=LIMIT_S, check=False
        )
    except subprocess.TimeoutExpired:
        return "caught"  # by a test that never ends
    return {0: "survived", FAILED: "caught"}.get(done.returncode, "invalid")


if __name__ == "__main__":
    sys.exit(main())
