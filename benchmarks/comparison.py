"""The paper's comparison on one cohort, from nothing: five networks, every method, the ablations, the claims.

    python benchmarks/comparison.py COHORT --out FOLDER [--steps 3500] [--jobs 6] [--score flair,t2]

Every network gets the same preset, learning rate and number of steps. `--jobs` commands run at a time: a large GPU has
room for several. Stopped or failed, the same call goes on with what is missing. FOLDER/logs has what each command said,
FOLDER/scores what one `anofpdm evaluate --method all` would have left, FOLDER/claims.md each claim, held or not.
`--model` takes a copy of a trained model, with its calibration and student if it has them, instead of training one;
`--learn-from` is a cohort for training, calibrating and teaching, where the other is only to tune and to test on.
"""

import argparse
import contextlib
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
from anofpdm.evaluation.comparison.methods import METHODS, EvidenceMethod
from anofpdm.evaluation.comparison.names import MODEL_TASKS
from anofpdm.network.checkpoint import STATE
from anofpdm.student.model import FOLDER as STUDENT

TRAINED = {name: ("--task", task, "--noise", noise) for name, (task, noise) in MODEL_TASKS.items()}
# Measured with other numbers of levels too.
FEW = ("anofpdm-ddim", "anofpdm-curve", "anofpdm-ours", "anofpdm-agreement")
CLAIMS = Path(__file__).with_name("claims.py")


@dataclass(frozen=True)
class Task:
    """One command, and those that must have ended well before it."""

    name: str
    needs: tuple[str, ...]
    command: Callable[[], list[str]]  # when it is about to run


def main() -> None:
    args = arguments().parse_args()
    signal.signal(signal.SIGTERM, signal.default_int_handler)  # as Ctrl-C
    try:
        for cohort in {args.cohort, args.learn_from or args.cohort}:
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
    print(f"look at {args.out / 'scores' / 'index.html'} and {args.out / 'claims.md'}")


def arguments() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("cohort", type=Path)
    parser.add_argument("--out", type=Path, required=True)
    parser.add_argument("--model", type=Path, help="a trained guided model")
    parser.add_argument("--learn-from", type=Path, help="a cohort to train on, where it is another")
    parser.add_argument("--preset", default="small", choices=("tiny", "small", "paper"))
    parser.add_argument("--learning-rate", default="2e-4")
    parser.add_argument("--steps", default="3500")
    parser.add_argument("--batch", default="64", help="slices a training step")
    parser.add_argument("--student-steps", default="3000")
    parser.add_argument("--score", default="", help="modalities that are scored")
    parser.add_argument("--levels", default="60")
    parser.add_argument("--other-levels", default="10", help="numbers of levels that ours is measured with besides")
    parser.add_argument("--tune", default="200", help="validation slices that comparison methods are tuned on")
    parser.add_argument("--first-setting", action="store_true", help="of each comparison method: quick, and unfair")
    parser.add_argument("--jobs", type=at_least_one, default=1)
    parser.add_argument("--device", default="auto")
    return parser


def at_least_one(word: str) -> int:
    if not word.isdigit() or int(word) < 1:
        raise argparse.ArgumentTypeError(f"{word}: at least 1")
    return int(word)


# ---- what is to be done ----------------------------------------------------------------------------------------------


def plan(args: argparse.Namespace) -> list[Task]:
    """In the order in which it is to begin."""
    write = Commands(args)
    model: tuple[str, ...] = () if args.model else ("guided",)
    tasks = [Task(name, (), partial(write.train, name)) for name in (*model, *TRAINED)]
    taught = bool(args.model) and (args.model / STUDENT).is_dir()
    if not taught:
        tasks += [Task("calibrate", model, write.calibrate), Task("distill", ("calibrate",), write.distill)]
    parts = []
    for name, (methods, needs) in groups().items():
        waits = ("distill",) if needs == ("student",) and not taught else ()
        networks = tuple(need for need in needs if need in TRAINED)
        tasks += [Task(name, (*model, *networks, *waits), partial(write.evaluate, f"parts/{name}", methods, networks))]
        parts.append(name)
    tasks += [Task("ablate", model, write.ablate), Task("scores", tuple(parts), partial(write.scores, parts))]
    others = [levels for levels in args.other_levels.split(",") if levels]
    tasks += [Task(f"levels-{one}", model, partial(write.evaluate, f"levels-{one}", FEW, (), one)) for one in others]
    return [*tasks, Task("claims", ("scores", "ablate"), lambda: ["claims"])]


def groups() -> dict[str, tuple[list[str], tuple[str, ...]]]:
    """Methods that are evaluated in one call, and what they need: readings share one pass of the network."""
    readings = [name for name, method in METHODS.items() if isinstance(method, EvidenceMethod)]
    others = {name: method for name, method in METHODS.items() if name not in readings}
    return {"readings": (readings, ()), **{f"method-{name}": ([name], one.needs) for name, one in others.items()}}


@dataclass(frozen=True)
class Commands:
    """What is said to `anofpdm`."""

    args: argparse.Namespace

    def train(self, name: str) -> list[str]:
        args, folder = self.args, self.args.out / name
        budget = ["--preset", args.preset, "--learning-rate", args.learning_rate, "--batch", args.batch]
        how = ["--resume"] if (folder / STATE).is_file() else [*budget, *TRAINED.get(name, ())]
        return self._with_device("train", self._lessons, "--out", folder, "--steps", args.steps, *how)

    def calibrate(self) -> list[str]:
        return self._with_device("calibrate", self._guided, self._lessons, *self._score)

    def distill(self) -> list[str]:
        return self._with_device("distill", self._guided, self._lessons, "--steps", self.args.student_steps)

    def evaluate(
        self, out: str, methods: Sequence[str], networks: Sequence[str] = (), levels: str | None = None
    ) -> list[str]:
        args = self.args
        chosen = [word for method in methods for word in ("--method", method)]
        given = [word for name in networks for word in ("--with", f"{name}={args.out / name}")]
        how = ["--levels", levels or args.levels, "--tune", args.tune, "--seeds", "1", *self._score]
        how += ["--first-setting"] if args.first_setting else []
        return self._with_device("evaluate", self._guided, args.cohort, "--out", args.out / out, *chosen, *given, *how)

    def scores(self, parts: Sequence[str]) -> list[str]:
        join([self.args.out / "parts" / name for name in parts], self.args.out / "scores")
        return self.evaluate("scores", ["all"], tuple(TRAINED))

    def ablate(self) -> list[str]:
        return self._with_device(
            "ablate", self._guided, self.args.cohort, "--out", self.args.out / "ablations", *self._score
        )

    @property
    def _guided(self) -> Path:
        return Path(self.args.out / "guided")

    @property
    def _lessons(self) -> Path:
        return Path(self.args.learn_from or self.args.cohort)

    @property
    def _score(self) -> list[str]:
        return ["--score", self.args.score] if self.args.score else []

    def _with_device(self, *words: object) -> list[str]:
        return [*map(str, words), "--device", self.args.device]


def join(parts: Sequence[Path], out: Path) -> None:
    """What methods left in folders of their own, in one: `anofpdm evaluate` finds them done there, and writes it up."""
    (out / "methods").mkdir(parents=True, exist_ok=True)
    for part in parts:
        shutil.copytree(part / "methods", out / "methods", dirs_exist_ok=True)
        for path in (*part.glob("tuned-*.json"), *part.glob("calibration-*.json"), part / "settings.json"):
            shutil.copy2(path, out / path.name)


# ---- doing it --------------------------------------------------------------------------------------------------------


def run(tasks: Sequence[Task], out: Path, jobs: int) -> list[str]:
    """Some at a time, the first that can begin first. Returns those that failed, or that waited for one that did."""
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
                say("done" if name in done else f"FAILED: {last_words(logs / f'{name}.log')}", name)
            for task in [task for task in left if set(task.needs) & set(failed)]:
                left.remove(task)
                failed.append(task.name)
            for task in [task for task in left if set(task.needs) <= done][: jobs - len(running)]:
                left.remove(task)
                say("begin", task.name)
                running[task.name] = start(task, out)
            time.sleep(0.2)
    except KeyboardInterrupt:  # the commands keep what they have
        for process in running.values():
            process.terminate()
        for process in running.values():
            process.wait()
        sys.exit("stopped; the same call goes on from here")
    return failed


def say(what: str, name: str) -> None:
    print(f"{time.strftime('%H:%M:%S')} {name}: {what}", flush=True)


def last_words(log: Path) -> str:
    lines = log.read_text(errors="replace").split("\n") if log.is_file() else []
    return next((line.strip() for line in reversed(lines) if any(map(str.isalnum, line))), "it said nothing")


def start(task: Task, out: Path) -> subprocess.Popen[bytes]:
    words = task.command()
    claims = words == ["claims"]
    command = (
        [str(CLAIMS), "claims", str(out / "scores"), str(out / "ablations")] if claims else ["-m", "anofpdm", *words]
    )
    with contextlib.ExitStack() as open_files:
        log = open_files.enter_context((out / "logs" / f"{task.name}.log").open("wb"))
        said = open_files.enter_context((out / "claims.md").open("wb")) if claims else log
        return subprocess.Popen([sys.executable, *command], stdout=said, stderr=log)


if __name__ == "__main__":
    main()
