"""Train one of the models that ship, from its prepared cohort: diffusion model, calibration, student.

    python benchmarks/train_models.py glioma COHORT --out FOLDER

Cohorts: the packs of slices as NIfTI files, prepared with the command in each model's card. FOLDER/recipe.json records
the commands, the commit and the hash of the cohort, for the card. Re-run the same command to resume. `lgg` ships as
a student alone: its diffusion model stays in FOLDER/diffusion.
"""

import argparse
import json
import shutil
import subprocess
import sys
from dataclasses import asdict, dataclass, replace
from pathlib import Path

from anofpdm import __version__
from anofpdm.cohorts import open_cohort
from anofpdm.network.checkpoint import STATE, WEIGHTS


@dataclass(frozen=True)
class Recipe:
    preset: str
    steps: int
    score: str  # modalities that maps are based on
    optional: str = ""  # modalities that a scan may lack
    student_steps: int = 3000
    thick_slices: bool = False
    students: int = 1  # from whose mean prediction the student learns
    student_only: bool = False

    def commands(self, cohort: Path, model: Path, device: str) -> dict[str, list[str]]:
        """By stage, in their order."""
        on = ["--device", device]
        train = ["--preset", self.preset, "--steps", str(self.steps), "--learning-rate", "2e-4"]
        saved = ["--weights", "float16" if self.student_only else "int8"]
        optional = ["--optional", self.optional] if self.optional else []
        thick = ["--thick-slices"] if self.thick_slices else []
        several = ["--students", str(self.students)] if self.students > 1 else []
        steps = ["--steps", str(self.student_steps), "--weights", "float16"]
        return {
            "train": ["train", str(cohort), "--out", str(model), *train, *saved, *on],
            "calibrate": ["calibrate", str(model), str(cohort), "--score", self.score, *on],
            "distill": ["distill", str(model), str(cohort), *steps, *optional, *thick, *several, *on],
        }


RECIPES = {
    "glioma": Recipe("compact", 5000, "flair,t2", "t1,t1ce,t2"),
    "stroke": Recipe("compact", 5000, "t1", student_steps=4000, thick_slices=True, students=3),
    "lgg": Recipe("small", 2500, "flair", student_only=True),
}


def main() -> None:
    args = parse_arguments()
    recipe = RECIPES[args.model]
    if args.steps is not None:
        recipe = replace(recipe, steps=args.steps)
    model = args.out / "diffusion"
    args.out.mkdir(parents=True, exist_ok=True)
    commands = recipe.commands(args.cohort, model, args.device)
    done_by = {"train": WEIGHTS, "calibrate": "calibration.json", "distill": f"student/{WEIGHTS}"}
    for stage, words in commands.items():
        if (model / done_by[stage]).is_file():
            continue
        resume = ["--resume"] if stage == "train" and (model / STATE).is_file() else []
        run(["train", words[1], "--out", str(model), "--steps", str(recipe.steps), *resume] if resume else words)
    write_record(args.out / "recipe.json", args.model, recipe, args.cohort, commands)
    copy_shipped(model, args.out, recipe)
    print(f"{args.model} is in {args.out}; add its card, facts.json and DATA_LICENSE before it ships")


def parse_arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("model", choices=RECIPES)
    parser.add_argument("cohort", type=Path)
    parser.add_argument("--out", type=Path, required=True)
    parser.add_argument("--steps", type=int)
    parser.add_argument("--device", default="auto")
    return parser.parse_args()


def run(words: list[str]) -> None:
    print("anofpdm", *words, flush=True)
    code = subprocess.run([sys.executable, "-m", "anofpdm", *words], check=False).returncode
    if code:
        sys.exit(code)


def write_record(path: Path, name: str, recipe: Recipe, cohort: Path, commands: dict[str, list[str]]) -> None:
    here = Path(__file__).parent
    git = subprocess.run(["git", "rev-parse", "HEAD"], cwd=here, capture_output=True, text=True, check=False)
    manifest = open_cohort(cohort).manifest
    record = {
        "model": name,
        "anofpdm": __version__,
        "commit": git.stdout.strip() or None,
        "recipe": asdict(recipe),
        "commands": ["anofpdm " + " ".join(words) for words in commands.values()],
        "cohort": {key: getattr(manifest, key) for key in ("scans", "slices_sha256", "tables_sha256")},
    }
    path.write_text(json.dumps(record, indent=1))


def copy_shipped(model: Path, out: Path, recipe: Recipe) -> None:
    shutil.rmtree(out / "student", ignore_errors=True)
    shutil.copytree(model / "student", out / "student", ignore=shutil.ignore_patterns("pseudo_labels", ".*"))
    for name in () if recipe.student_only else (WEIGHTS, "config.json", "calibration.json"):
        shutil.copy(model / name, out / name)


if __name__ == "__main__":
    main()
