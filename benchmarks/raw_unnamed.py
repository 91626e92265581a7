"""Seconds of a study whose file names do not give contrasts, with brains extracted once, and again after the choice.

    python benchmarks/raw_unnamed.py MODEL RAW_GLIOMA

The series are copied as scan1.nii.gz, scan2.nii.gz, and so on. From files to written results, without loading the
model; both ways alternate in one process.
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
    seconds: dict[bool, list[float]] = {False: [], True: []}
    with tempfile.TemporaryDirectory() as name:
        study = Path(name, "study")
        study.mkdir()
        for number, path in enumerate(series_files(args.folder).values(), start=1):
            shutil.copy(path, study / f"scan{number}.nii.gz")
        for number in range(args.rounds):
            for reuse in seconds:
                seconds[reuse].append(segment_unnamed(model, study, Path(name, f"{number}_{reuse}"), reuse))
    again, once = (statistics.median(seconds[reuse]) for reuse in (False, True))
    print(f"extracted again {again:.0f} s; extracted once {once:.0f} s: {once / again:.2f} of it")
    print(f"limit {MOST_SECONDS} s: {verdict(once <= MOST_SECONDS)}")


def segment_unnamed(model: Model, study: Path, out: Path, reuse: bool) -> float:
    start = time.perf_counter()
    (target,) = find_targets([str(study)], model.request().modalities, raw=Raw.AUTO)
    run = RawRun(out / "preparation", brains=target.brains if reuse else NO_BRAINS)
    model.segment(target.subject.images, raw=Raw.AUTO, raw_run=run).save(out)
    seconds = time.perf_counter() - start
    print(f"{'once' if reuse else 'again'}: {seconds:.1f} s; {'; '.join(target.notes)}", flush=True)
    return seconds


if __name__ == "__main__":
    main()
