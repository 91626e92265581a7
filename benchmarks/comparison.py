"""The whole comparison of the paper on one cohort: five networks, every method, the ablations, the claims.

    python benchmarks/comparison.py COHORT --out FOLDER [--steps 3500] [--jobs 6] [--score flair,t2]

Every network has the same preset, learning rate and number of steps. `--jobs` commands run at a time: a large GPU has
room for several. Re-run the same command to resume. FOLDER/logs has the output of each command, FOLDER/scores that of
`anofpdm evaluate --method all`, FOLDER/claims.md each claim, held or not. `--model` copies a trained model, with its
calibration and student if it has them, instead of training one. `--train-on` is a cohort for training, calibration and
distillation; the other cohort is then used for tuning and testing only.
"""

import argparse
import shutil
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path

from anofpdm.cohorts import open_cohort
from anofpdm.errors import CohortError
from anofpdm.network.checkpoint import STATE
from anofpdm.student.student import FOLDER as STUDENT
from anofpdm.study.comparison.methods import METHODS, EvidenceMethod
from anofpdm.study.comparison.names import MODEL_TASKS

TRAINED = {name: ("--task", task, "--noise", noise) for name, (task, noise) in MODEL_TASKS.items()}
# Also evaluated with 10 levels.
FEW = ("anofpdm-ddim", "anofpdm-curve", "anofpdm-ours", "anofpdm-agreement")
CLAIMS = Path(__file__).with_name("claims.py")


@dataclass(frozen=True)
class Task:
    """A command, and the tasks that must have succeeded before it."""

    name: str
    needs: tuple[str, ...]
    command: Callable[[], list[str]]  # arguments, built when the task starts


def main() -> None:
    args = arguments().parse_args()
    signal.signal(signal.SIGTERM, signal.default_int_handler)  # as Ctrl-C
    try:
        for cohort in {args.cohort, args.train_on or args.cohort}:
            open_cohort(cohort)
    except CohortError as problem:
        sys.exit(f"comparison: {problem}")
    args.out.mkdir(parents=True, exist_ok=True)
    if args.model and not (args.out / "guided").is_dir():
        shutil.copytree(args.model, args.out / "guided")
    tasks = plan(args)
    failed = run(tasks, args.out, args.jobs)
    if failed:
        sys.exit(f"not done: {', '.join(failed)}; see {args.out / 'logs'}, and run this again")
    with (args.out / "claims.md").open("w") as file:
        words = ["claims", str(args.out / "scores"), str(args.out / "ablations")]
        subprocess.run([sys.executable, str(CLAIMS), *words], stdout=file, check=True)
    print(f"report: {args.out / 'scores' / 'index.html'} and {args.out / 'claims.md'}")


def arguments() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("cohort", type=Path)
    parser.add_argument("--out", type=Path, required=True)
    parser.add_argument("--model", type=Path, help="a trained guided model")
    parser.add_argument("--train-on", type=Path, help="cohort for training; default: the same")
    parser.add_argument("--preset", default="small", choices=("tiny", "small", "paper"))
    parser.add_argument("--learning-rate", default="2e-4")
    parser.add_argument("--steps", default="3500")
    parser.add_argument("--score", default="", help="modalities to score")
    parser.add_argument("--sample", default="", help="test slices, drawn at random; default: all")
    parser.add_argument("--jobs", type=int, choices=range(1, 17), metavar="1..16", default=1)
    return parser


# ---- plan ------------------------------------------------------------------------------------------------------------


def plan(args: argparse.Namespace) -> list[Task]:
    """Tasks in the order in which they start."""
    write = Commands(args)
    model: tuple[str, ...] = () if args.model else ("guided",)
    tasks = [Task(name, (), partial(write.train, name)) for name in (*model, *TRAINED)]
    has_student = bool(args.model) and (args.model / STUDENT).is_dir()
    if not has_student:
        tasks += [Task("calibrate", model, write.calibrate), Task("distill", ("calibrate",), write.distill)]
    parts = []
    for name, (methods, needs) in groups().items():
        waits = ("distill",) if needs == ("student",) and not has_student else ()
        networks = tuple(need for need in needs if need in TRAINED)
        tasks += [Task(name, (*model, *networks, *waits), partial(write.evaluate, f"parts/{name}", methods, networks))]
        parts.append(name)
    return [
        *tasks,
        Task("ablate", model, write.ablate),
        Task("scores", tuple(parts), partial(write.scores, parts)),
        Task("levels-10", model, partial(write.evaluate, "levels-10", FEW, (), "10")),
    ]


def groups() -> dict[str, tuple[list[str], tuple[str, ...]]]:
    """Methods evaluated in one command, and the models they need: evidence methods share a pass of the network."""
    evidence = [name for name, method in METHODS.items() if isinstance(method, EvidenceMethod)]
    others = {name: method for name, method in METHODS.items() if name not in evidence}
    return {"evidence": (evidence, ()), **{f"method-{name}": ([name], method.needs) for name, method in others.items()}}


@dataclass(frozen=True)
class Commands:
    """Arguments of `anofpdm`."""

    args: argparse.Namespace

    def train(self, name: str) -> list[str]:
        args, folder = self.args, self.args.out / name
        budget = ["--preset", args.preset, "--learning-rate", args.learning_rate]
        how = ["--resume"] if (folder / STATE).is_file() else [*budget, *TRAINED.get(name, ())]
        return ["train", self._training_cohort, "--out", str(folder), "--steps", args.steps, *how]

    def calibrate(self) -> list[str]:
        return ["calibrate", self._guided, self._training_cohort, *self._score]

    def distill(self) -> list[str]:
        return ["distill", self._guided, self._training_cohort]

    def evaluate(self, out: str, methods: Sequence[str], networks: Sequence[str] = (), levels: str = "60") -> list[str]:
        args = self.args
        chosen = [word for method in methods for word in ("--method", method)]
        given = [word for name in networks for word in ("--with", f"{name}={args.out / name}")]
        how = ["--levels", levels, "--tune", "200", "--seeds", "1", *self._score]
        how += ["--sample", args.sample] if args.sample else []
        where = [self._guided, str(args.cohort), "--out", str(args.out / out)]
        return ["evaluate", *where, *chosen, *given, *how]

    def scores(self, parts: Sequence[str]) -> list[str]:
        join([self.args.out / "parts" / name for name in parts], self.args.out / "scores")
        return self.evaluate("scores", ["all"], tuple(TRAINED))

    def ablate(self) -> list[str]:
        out = self.args.out / "ablations"
        return ["ablate", self._guided, str(self.args.cohort), "--out", str(out), *self._score]

    @property
    def _guided(self) -> str:
        return str(self.args.out / "guided")

    @property
    def _training_cohort(self) -> str:
        return str(self.args.train_on or self.args.cohort)

    @property
    def _score(self) -> list[str]:
        return ["--score", self.args.score] if self.args.score else []


def join(parts: Sequence[Path], out: Path) -> None:
    """Copies the results of all parts into one folder, in which `anofpdm evaluate` only writes the report."""
    (out / "methods").mkdir(parents=True, exist_ok=True)
    for part in parts:
        shutil.copytree(part / "methods", out / "methods", dirs_exist_ok=True)
        for path in (*part.glob("tuned-*.json"), *part.glob("calibration-*.json"), part / "settings.json"):
            shutil.copy2(path, out / path.name)


# ---- run -------------------------------------------------------------------------------------------------------------


def run(tasks: Sequence[Task], out: Path, jobs: int) -> list[str]:
    """Runs up to `jobs` tasks at a time, in order. Returns failed tasks and those that depend on them."""
    logs = out / "logs"
    logs.mkdir(exist_ok=True)
    done = {task.name for task in tasks if (logs / f"{task.name}.done").is_file()}
    left, running, failed = [task for task in tasks if task.name not in done], dict[str, subprocess.Popen[bytes]](), []
    try:
        while left or running:
            for name, process in list(running.items()):
                if process.poll() is None:
                    continue
                del running[name]
                if process.returncode == 0:
                    done.add(name)
                    (logs / f"{name}.done").touch()
                else:
                    failed.append(name)
                failure = f"FAILED with code {process.returncode}, see logs/{name}.log"
                report(name, "done" if name in done else failure)
            for task in [task for task in left if set(task.needs) & set(failed)]:
                left.remove(task)
                failed.append(task.name)
            for task in [task for task in left if set(task.needs) <= done][: jobs - len(running)]:
                left.remove(task)
                report(task.name, "started")
                running[task.name] = start(task, logs)
            time.sleep(0.2)
    except KeyboardInterrupt:  # commands keep their progress
        for process in running.values():
            process.terminate()
        for process in running.values():
            process.wait()
        sys.exit("stopped; re-run the same command to resume")
    return failed


def report(name: str, message: str) -> None:
    print(f"{time.strftime('%H:%M:%S')} {name}: {message}", flush=True)


def start(task: Task, logs: Path) -> subprocess.Popen[bytes]:
    command = [sys.executable, "-X", "faulthandler", "-m", "anofpdm", *task.command()]
    with (logs / f"{task.name}.log").open("wb") as log:
        return subprocess.Popen(command, stdout=log, stderr=log)


if __name__ == "__main__":
    main()
