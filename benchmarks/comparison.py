"""The paper's comparison on one cohort, from nothing: five networks, every method, the ablations, the claims.

    python benchmarks/comparison.py COHORT --out FOLDER [--steps 3500] [--jobs 6] [--score flair,t2]

Every network gets the same preset, learning rate and number of steps. `--jobs` commands run at a time: a large GPU has
room for several. Stopped or failed, the same call goes on with what is missing. FOLDER/logs has what each command said,
FOLDER/scores what one `anofpdm evaluate --method all` would have left, FOLDER/claims.md each claim, held or not.
`--model` takes a trained model instead of training one.
"""

import argparse
import shutil
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path

from anofpdm.evaluation.methods import METHODS, FromEvidence, Reconstruction
from anofpdm.network.checkpoint import STATE

TRAINED = {  # as `evaluate --with` calls them
    "unconditional": ("--task", "unconditional"),
    "classifier": ("--task", "classifier"),
    "healthy": ("--task", "healthy"),
    "simplex": ("--task", "healthy", "--noise", "simplex"),
}
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
    args.out.mkdir(parents=True, exist_ok=True)
    tasks = plan(args)
    failed = run(tasks, args.out, args.jobs)
    if failed:
        sys.exit("not done: " + ", ".join(f"{name} ({args.out / 'logs' / name}.log)" for name in failed))
    print(f"look at {args.out / 'scores' / 'index.html'} and {args.out / 'claims.md'}")


def arguments() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("cohort", type=Path)
    parser.add_argument("--out", type=Path, required=True)
    parser.add_argument("--model", type=Path, help="a trained guided model")
    parser.add_argument("--preset", default="small")
    parser.add_argument("--learning-rate", default="2e-4")
    parser.add_argument("--steps", default="3500")
    parser.add_argument("--batch", default="64", help="slices a training step")
    parser.add_argument("--student-steps", default="3000")
    parser.add_argument("--score", default="", help="modalities that are scored")
    parser.add_argument("--levels", default="60")
    parser.add_argument("--other-levels", default="10", help="numbers of levels that ours is measured with besides")
    parser.add_argument("--tune", default="200", help="validation slices that comparison methods are tuned on")
    parser.add_argument("--first-setting", action="store_true", help="of each comparison method: quick, and unfair")
    parser.add_argument("--jobs", type=int, default=1)
    parser.add_argument("--device", default="auto")
    return parser


# ---- what is to be done ----------------------------------------------------------------------------------------------


def plan(args: argparse.Namespace) -> list[Task]:
    """In the order in which it is to begin."""
    out, cohort, guided = args.out, str(args.cohort), args.model or args.out / "guided"
    device = ["--device", args.device]
    score = ["--score", args.score] if args.score else []
    fair = ["--first-setting"] if args.first_setting else []
    networks = {name: out / name for name in TRAINED}

    def train(folder: Path, how: Sequence[str] = ()) -> Callable[[], list[str]]:
        budget = ["--preset", args.preset, "--learning-rate", args.learning_rate, "--batch", args.batch]

        def command() -> list[str]:
            begun = (folder / STATE).is_file()
            how_on = ["--resume"] if begun else [*budget, *how]
            return ["train", cohort, "--out", str(folder), "--steps", args.steps, *how_on, *device]

        return command

    def evaluate(name: str, methods: Sequence[str], levels: str, others: Sequence[str] = ()) -> Callable[[], list[str]]:
        chosen = [word for method in methods for word in ("--method", method)]
        given = [word for other in others for word in ("--with", f"{other}={networks[other]}")]
        settings = ["--levels", levels, "--tune", args.tune, "--seeds", "1", *score, *fair, *device]
        return lambda: ["evaluate", str(guided), cohort, "--out", str(out / name), *chosen, *given, *settings]

    def fixed(*words: object) -> Callable[[], list[str]]:
        return lambda: [*map(str, words), *device]

    readings = [name for name, method in METHODS.items() if isinstance(method, FromEvidence)]
    compared = {name: method.needs for name, method in METHODS.items() if isinstance(method, Reconstruction)}
    parts = ["readings", *(f"method-{name}" for name in compared), "student"]
    tasks = [] if args.model else [Task("guided", (), train(guided))]
    of_model = () if args.model else ("guided",)
    tasks += [Task(name, (), train(networks[name], how)) for name, how in TRAINED.items()]
    tasks += [Task("calibrate", of_model, fixed("calibrate", guided, cohort, *score))]
    tasks += [Task("distill", ("calibrate",), fixed("distill", guided, cohort, "--steps", args.student_steps))]
    tasks += [Task("readings", of_model, evaluate("parts/readings", readings, args.levels))]
    tasks += [
        Task(f"method-{name}", (*of_model, *needs), evaluate(f"parts/method-{name}", [name], args.levels, needs))
        for name, needs in compared.items()
    ]
    tasks += [Task("student", ("distill",), evaluate("parts/student", ["anofpdm-student"], args.levels))]
    tasks += [Task("ablate", of_model, fixed("ablate", guided, cohort, "--out", out / "ablations", *score))]
    write_up = evaluate("scores", ["all"], args.levels, tuple(TRAINED))

    def joined() -> list[str]:
        join([out / "parts" / name for name in parts], out / "scores")
        return write_up()

    tasks += [Task("scores", tuple(parts), joined)]
    tasks += [
        Task(f"levels-{levels}", of_model, evaluate(f"levels-{levels}", FEW, levels))
        for levels in args.other_levels.split(",")
        if levels
    ]
    return [*tasks, Task("claims", ("scores", "ablate"), lambda: ["claims"])]


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
                print(f"{time.strftime('%H:%M:%S')} {'done' if name in done else 'FAILED'} {name}", flush=True)
            for task in [task for task in left if set(task.needs) & set(failed)]:
                left.remove(task)
                failed.append(task.name)
            for task in [task for task in left if set(task.needs) <= done][: jobs - len(running)]:
                left.remove(task)
                print(f"{time.strftime('%H:%M:%S')} begin {task.name}", flush=True)
                running[task.name] = start(task, out)
            time.sleep(0.2)
    except KeyboardInterrupt:  # the commands keep what they have
        for process in running.values():
            process.terminate()
        for process in running.values():
            process.wait()
        sys.exit("stopped; the same call goes on from here")
    return failed


def start(task: Task, out: Path) -> subprocess.Popen[bytes]:
    words = task.command()
    if words == ["claims"]:
        command, said = [str(CLAIMS), str(out / "scores"), str(out / "ablations")], out / "claims.md"
    else:
        command, said = ["-m", "anofpdm", *words], out / "logs" / f"{task.name}.log"
    with said.open("wb") as file:
        return subprocess.Popen([sys.executable, *command], stdout=file, stderr=subprocess.STDOUT)


if __name__ == "__main__":
    main()
