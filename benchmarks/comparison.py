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
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from anofpdm.cohorts import open_cohort
from anofpdm.errors import CohortError
from anofpdm.network.checkpoint import STATE
from anofpdm.student.student import FOLDER as STUDENT
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
    command: list[str]  # arguments of `anofpdm`


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
    guided, training_cohort = str(args.out / "guided"), str(args.train_on or args.cohort)
    score = ["--score", args.score] if args.score else []
    model: tuple[str, ...] = () if args.model else ("guided",)
    tasks = [Task(name, (), train_command(args, name, training_cohort)) for name in (*model, *TRAINED)]
    has_student = bool(args.model) and (args.model / STUDENT).is_dir()
    if not has_student:
        tasks.append(Task("calibrate", model, ["calibrate", guided, training_cohort, *score]))
        tasks.append(Task("distill", ("calibrate",), ["distill", guided, training_cohort]))
    evaluate = ["evaluate", guided, str(args.cohort), "--tune", "200", "--seeds", "1", *score]
    evaluate += ["--sample", args.sample] if args.sample else []
    networks = [word for name in TRAINED for word in ("--with", f"{name}={args.out / name}")]
    few = [word for method in FEW for word in ("--method", method)]
    return [
        *tasks,
        Task("ablate", model, ["ablate", guided, str(args.cohort), "--out", str(args.out / "ablations"), *score]),
        Task("levels-10", model, [*evaluate, *few, "--levels", "10", "--out", str(args.out / "levels-10")]),
        Task(
            "scores",
            tuple(task.name for task in tasks),
            [*evaluate, "--method", "all", *networks, "--levels", "60", "--out", str(args.out / "scores")],
        ),
    ]


def train_command(args: argparse.Namespace, name: str, cohort: str) -> list[str]:
    folder = args.out / name
    budget = ["--preset", args.preset, "--learning-rate", args.learning_rate, *TRAINED.get(name, ())]
    how = ["--resume"] if (folder / STATE).is_file() else budget
    return ["train", cohort, "--out", str(folder), "--steps", args.steps, *how]


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
    command = [sys.executable, "-X", "faulthandler", "-m", "anofpdm", *task.command]
    with (logs / f"{task.name}.log").open("wb") as log:
        return subprocess.Popen(command, stdout=log, stderr=log)


if __name__ == "__main__":
    main()
