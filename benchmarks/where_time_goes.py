"""Where the seconds of a command go, on a CPU or a GPU.

    python benchmarks/where_time_goes.py segment tumour scans/patient --out result
    python benchmarks/where_time_goes.py --json distill.json distill model cohort

Runs an anofpdm command in this process. Every 5 ms a thread notes which code the main thread is in, and whether the GPU
has work. The table has one line for each kind of work. On a GPU, "network" contains the time in which the main thread
waits for the network's results; "transfers" is what is left of copying when the GPU has nothing else to do.
"""

import argparse
import json
import linecache
import sys
import threading
import time
from collections import Counter
from collections.abc import Iterator
from pathlib import Path
from types import FrameType
from typing import Any

INTERVAL = 0.005  # seconds
STARTED = time.perf_counter()

# The first rule that matches the innermost possible frame decides. Parts of file names.
RULES = (
    ("start-up", ("<frozen importlib", "/triton/", "torch/_inductor", "torch/_dynamo", "inspect.py")),
    ("waiting", ("/threading.py", "/queue.py", "concurrent/futures", "/selectors.py", "/subprocess.py")),
    (
        "files",
        ("/zipfile", "/gzip.py", "_npyio", "/format.py", "util/files.py", "cohorts/store.py", "cohorts/writer.py"),
    ),
    (
        "files",
        ("network/checkpoint.py", "safetensors", "nibabel", "zlib_ng", "/csv.py", "/json/", "calibration/files.py"),
    ),
    ("files", ("evaluation/comparison/results.py", "segment/outputs.py", "scans/dicom/", "pydicom", "PIL/")),
    ("masks and filters", ("scipy/ndimage", "method/mask.py", "method/context.py", "method/decision.py")),
    ("masks and filters", ("method/calibration.py", "method/detection.py", "scans/", "cohorts/")),
    ("scores", ("evaluation/metrics/", "evaluation/comparison/scores.py")),
    (
        "network",
        (
            "site-packages/torch/",
            "network/",
            "student/network.py",
            "student/cpu.py",
            "student/training.py",
            "baselines/",
        ),
    ),
    ("network", ("method/",)),
)
TRANSFERS = (".cpu()", ".cpu(", ".numpy()", ".to(", "from_numpy", "pin_memory", "Tensor.cpu", ".item()", "float(loss")
KINDS = ("start-up", "network", "transfers", "masks and filters", "files", "scores", "waiting", "other")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--json", type=Path, help="Also write the seconds of each kind to this file.")
    parser.add_argument("--lines", type=int, default=0, help="Also print so many of the most frequent lines of code.")
    parser.add_argument("command", nargs=argparse.REMAINDER, help="An anofpdm command with its arguments.")
    args = parser.parse_args()
    sampler = Sampler()
    sampler.start()
    code = run(args.command)
    seconds = sampler.stop()
    print_table(args.command, sampler, seconds)
    for (kind, place), count in sampler.places.most_common(args.lines):
        print(f"{count * seconds / sampler.total:8.1f}  {kind:18s} {place}")
    if args.json:
        shares = {kind: sampler.kinds[kind] * seconds / sampler.total for kind in KINDS}
        args.json.write_text(
            json.dumps({"seconds": seconds, "gpu_busy": sampler.busy * seconds / sampler.total, **shares})
        )
    if code:
        sys.exit(code)


def run(arguments: list[str]) -> int:
    """The exit code."""
    from anofpdm.cli.main import main as anofpdm

    sys.argv = ["anofpdm", *arguments]
    try:
        anofpdm()
    except SystemExit as end:
        return int(end.code or 0)
    return 0


class Sampler:
    """Samples the main thread in the background."""

    def __init__(self) -> None:
        self.kinds: Counter[str] = Counter()
        self.places: Counter[tuple[str, str]] = Counter()
        self.total = self.busy = 0
        self._main, self._end = threading.get_ident(), threading.Event()
        self._thread = threading.Thread(target=self._sample, daemon=True)

    def start(self) -> None:
        self._thread.start()

    def stop(self) -> float:
        """Seconds since this file was started."""
        self._end.set()
        self._thread.join()
        return time.perf_counter() - STARTED

    def _sample(self) -> None:
        while not self._end.wait(INTERVAL):
            frame = sys._current_frames().get(self._main)
            if frame is None:
                continue
            busy = gpu_is_busy()
            kind, place = classify(frame, busy)
            self.kinds[kind] += 1
            self.places[kind, place] += 1
            self.total += 1
            self.busy += busy


def gpu_is_busy() -> bool:
    torch: Any = sys.modules.get("torch")
    if torch is None or not hasattr(torch, "cuda") or not getattr(torch.cuda, "is_initialized", bool)():
        return False
    try:
        return not torch.cuda.default_stream().query()
    except RuntimeError:  # while a graph is recorded
        return True


def classify(frame: FrameType, busy: bool) -> tuple[str, str]:
    """Kind of work, and the line of anofpdm that it is done for."""
    frames = list(_outwards(frame))
    own = next((one for one in frames if "anofpdm" in one.f_code.co_filename), frames[-1])
    place = f"{Path(own.f_code.co_filename).name}:{own.f_lineno} {own.f_code.co_name}"
    if any("<frozen importlib" in one.f_code.co_filename for one in frames):
        return "start-up", place
    if own.f_code.co_filename.endswith("network/cpu.py"):  # waits for threads that run the network
        return "network", place
    line = linecache.getline(own.f_code.co_filename, own.f_lineno)
    if any(word in line for word in TRANSFERS):
        return ("network" if busy else "transfers"), place
    for one in frames:
        name = one.f_code.co_filename
        for kind, parts in RULES:
            if any(part in name for part in parts):
                return kind, place
    return "other", place


def _outwards(frame: FrameType | None) -> Iterator[FrameType]:
    while frame is not None:
        yield frame
        frame = frame.f_back


def print_table(command: list[str], sampler: Sampler, seconds: float) -> None:
    share = seconds / max(sampler.total, 1)
    print(f"\nanofpdm {' '.join(command[:1])}: {seconds:.1f} s")
    for kind in KINDS:
        if sampler.kinds[kind]:
            print(f"  {kind:18s} {sampler.kinds[kind] * share:7.1f} s")
    if sampler.busy:
        print(f"  GPU has work       {sampler.busy * share:7.1f} s")


if __name__ == "__main__":
    main()
