"""Seconds of a study whose file names do not give contrasts, with brains extracted once, and again after the choice.

    python benchmarks/raw_unnamed.py MODEL RAW_GLIOMA

The series are copied as scan1.nii.gz, scan2.nii.gz, and so on. From files to written results, without loading the
model; both ways alternate in one process. The ratio is of computing time, which other work on the machine hardly
changes.
"""

import argparse
import shutil
import statistics
import tempfile
import time
import warnings
from pathlib import Path

from raw import MOST_SECONDS, series_files, verdict

from anofpdm.cohorts.inputs import find_targets
from anofpdm.errors import ScanWarning
from anofpdm.options import Raw
from anofpdm.scans.raw.found import NO_BRAINS
from anofpdm.scans.raw.run import RawRun
from anofpdm.segment.model import Model, load


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("model", type=Path)
    parser.add_argument("folder", type=Path)
    parser.add_argument("--rounds", type=int, default=2)
    args = parser.parse_args()
    warnings.simplefilter("ignore", ScanWarning)
    model = load(args.model, "cpu")
    seconds: dict[bool, list[tuple[float, float]]] = {False: [], True: []}  # elapsed, computing
    with tempfile.TemporaryDirectory() as name:
        study = Path(name, "study")
        study.mkdir()
        for number, path in enumerate(series_files(args.folder).values(), start=1):
            shutil.copy(path, study / f"scan{number}.nii.gz")
        for number in range(args.rounds):
            for reuse in seconds:
                seconds[reuse].append(segment_unnamed(model, study, Path(name, f"{number}_{reuse}"), reuse))
    again, once = (statistics.median(computing for _, computing in seconds[reuse]) for reuse in (False, True))
    elapsed = statistics.median(elapsed for elapsed, _ in seconds[True])
    print(f"computing: extracted again {again:.0f} s; extracted once {once:.0f} s: {once / again:.2f} of it")
    print(f"elapsed, extracted once: {elapsed:.0f} s (limit {MOST_SECONDS} s): {verdict(elapsed <= MOST_SECONDS)}")


def segment_unnamed(model: Model, study: Path, out: Path, reuse: bool) -> tuple[float, float]:
    start, computed = time.perf_counter(), time.process_time()
    (target,) = find_targets([str(study)], model.request().inputs, raw=Raw.AUTO)
    run = RawRun(out / "preparation", brains=target.brains if reuse else NO_BRAINS)
    model.segment(target.subject.images, raw=Raw.AUTO, raw_run=run).save(out)
    elapsed, computing = time.perf_counter() - start, time.process_time() - computed
    print(f"{'once' if reuse else 'again'}: {elapsed:.1f} s, {computing:.1f} s of computing", end="; ")
    print("; ".join(target.notes), flush=True)
    return elapsed, computing


if __name__ == "__main__":
    main()
