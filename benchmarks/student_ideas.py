"""Ideas for a better student: one row each and seed, on a cohort's validation split. Lesion masks are for scores only.

    python benchmarks/student_ideas.py MODEL COHORT [--ideas default,edges] [--seeds 0,1] [--out FILE.json]

Pseudo-labels are computed once and cached in the model's folder, as by `anofpdm distill`. Each idea changes one thing;
`+` joins several, as in `edges+all modalities`. Columns as in `benchmarks/ceiling.py`, for two sizes of the smallest
component.
"""

import argparse
import json
import time
from collections.abc import Callable
from dataclasses import dataclass, replace
from pathlib import Path

import numpy as np
import torch
from student_changes import (
    cross_fitted,
    fill_holes,
    hard,
    loss_by_area,
    loss_by_slice,
    several_seeds,
)
from student_study import SCORES, Drawing, Outputs, Part, Recipe, draw, print_head, print_row, score, train
from student_synthetic import Synthetic, make_synthetic
from torch import Tensor

from anofpdm.calibration.files import load_calibration
from anofpdm.cohorts import open_cohort
from anofpdm.method.decision import OURS
from anofpdm.network.predictor import load_trained
from anofpdm.student import training as student_training
from anofpdm.student.edges import move_edges
from anofpdm.student.network import StudentNet
from anofpdm.student.targets import Teacher, pseudo_label
from anofpdm.student.training import StudentTrainingConfig
from anofpdm.util.distributed import World

Targets = np.ndarray  # uint8 [n, H, W]: probability of lesion times 255
SIZES = ("1-50", "51-200", "201-500", "501-1000", "over 1000")
DRAWINGS = {  # by the smallest component, in pixels; linked: smaller ones that continue a lesion are kept
    Drawing(): "40 linked",
    Drawing(linked=False): "40",
    Drawing(smallest=10, linked=False): "10",
}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("model", type=Path)
    parser.add_argument("cohort", type=Path)
    parser.add_argument("--ideas", default=",".join(IDEAS))
    parser.add_argument("--seeds", default="0")
    parser.add_argument("--steps", type=int, default=3000)
    parser.add_argument("--out", type=Path)
    parser.add_argument("--device", default="cuda" if torch.cuda.is_available() else "cpu")
    args = parser.parse_args()
    torch.backends.cudnn.benchmark = True
    study, found = Study.start(args), []
    columns = (*SCORES, *SIZES)
    print_head(("idea, seed, smallest", *columns, "s"))
    for name in args.ideas.split(","):
        for seed in map(int, args.seeds.split(",")):
            start = time.perf_counter()
            outputs = study.run(name, seed)
            seconds = time.perf_counter() - start
            for drawing, smallest in DRAWINGS.items():
                numbers = score(draw(outputs, study.val.positions, drawing), study.truth, study.val.patients)
                numbers["s"] = seconds
                print_row(f"{name}, {seed}, {smallest}", numbers, (*columns, "s"))
                found.append({"idea": name, "seed": seed, "smallest": smallest, **numbers})
                if args.out:
                    args.out.write_text(json.dumps(found, indent=1))


@dataclass(frozen=True)
class Idea:
    """What differs from the default. Ideas that are joined apply their changes in order."""

    recipe: Callable[["Study", Recipe], Recipe] | None = None
    targets: Callable[["Study", Targets, Recipe], Targets] | None = None
    mask_loss: Callable[[Tensor, Tensor], Tensor] | None = None
    keep_edges: bool = False  # of the pseudo-labels
    synthetic: int = 0  # slices with synthetic lesions
    students: int = 1  # whose logits are averaged


@dataclass(frozen=True)
class Study:
    teacher: Teacher
    train_part: Part
    val: Part
    truth: np.ndarray
    steps: int

    @classmethod
    def start(cls, args: argparse.Namespace) -> "Study":
        model, cohort = load_trained(args.model, torch.device(args.device)), open_cohort(args.cohort)
        calibration, _ = load_calibration(model)
        teacher = Teacher(model, calibration, replace(OURS, context_mm=calibration.context_mm))
        val = Part(cohort, cohort.rows("val"))
        return cls(teacher, Part(cohort, cohort.rows("train")), val, val.truth(), args.steps)

    @property
    def scored(self) -> tuple[str, ...]:
        return self.teacher.scored

    def pseudo_labels(self, seed: int | None = None) -> Targets:
        """Of the calibration's noise seed, or another."""
        calibration = self.teacher.calibration
        teacher = replace(
            self.teacher, calibration=replace(calibration, seed=calibration.seed if seed is None else seed)
        )
        masks = pseudo_label(teacher, self.train_part.cohort, self.train_part.rows, World())
        assert masks is not None
        return masks

    def train(
        self, recipe: Recipe, targets: Targets, part: Part | None = None, synthetic: Synthetic | None = None
    ) -> StudentNet:
        return train(recipe, part or self.train_part, targets, self.teacher.model.device, synthetic)

    def run(self, names: str, seed: int) -> Outputs:
        ideas = [IDEAS[name] for name in names.split("+")]
        recipe = Recipe(self.scored, StudentTrainingConfig(self.steps, seed=seed))
        for idea in ideas:
            recipe = idea.recipe(self, recipe) if idea.recipe else recipe
        loss = student_training.mask_loss
        try:
            for idea in ideas:
                setattr(student_training, "mask_loss", idea.mask_loss or student_training.mask_loss)  # noqa: B010
            targets = self.pseudo_labels()
            for idea in ideas:
                targets = idea.targets(self, targets, recipe) if idea.targets else targets
            if not any(idea.keep_edges for idea in ideas):
                targets = move_edges(targets, self.train_part.pixels(self.scored))
            more, count = max(idea.synthetic for idea in ideas), max(idea.students for idea in ideas)
            synthetic = make_synthetic(self, targets, more) if more else None
            recipes = [with_seed(recipe, 10 * seed + one) for one in range(count)]
            return self.outputs([self.train(one, targets, synthetic=synthetic) for one in recipes])
        finally:
            setattr(student_training, "mask_loss", loss)  # noqa: B010

    def outputs(self, networks: list[StudentNet]) -> Outputs:
        """The mean of several; the detector is that of the first."""
        found = [Outputs.of(network, self.val, self.val, self.teacher.model.device) for network in networks]
        logits = np.mean([one.pixel_logits for one in found], axis=0)
        return Outputs(logits, np.mean([one.slice_logits for one in found], axis=0), found[0].calibration)


def with_seed(recipe: Recipe, seed: int) -> Recipe:
    return replace(recipe, training=replace(recipe.training, seed=seed))


# ---- the list --------------------------------------------------------------------------------------------------------


def all_modalities(study: Study, recipe: Recipe) -> Recipe:
    return replace(recipe, modalities=study.teacher.model.modalities)


def nothing_pasted(_study: Study, recipe: Recipe) -> Recipe:
    return replace(recipe, training=replace(recipe.training, paste_share=0.0))


def thick_slices(_study: Study, recipe: Recipe) -> Recipe:
    return replace(recipe, training=replace(recipe.training, thick_slices=True))


def longer(_study: Study, recipe: Recipe) -> Recipe:
    return replace(recipe, training=replace(recipe.training, steps=2 * (recipe.training.steps or 0)))


IDEAS = {
    "default": Idea(),
    "all modalities": Idea(recipe=all_modalities),
    "two slices each side": Idea(recipe=lambda _, recipe: replace(recipe, sides=2)),
    "wider": Idea(recipe=lambda _, recipe: replace(recipe, width=48)),
    "longer": Idea(recipe=longer),
    "edges not moved": Idea(keep_edges=True),
    "nothing pasted": Idea(recipe=nothing_pasted),
    "thick slices": Idea(recipe=thick_slices),
    "filled": Idea(targets=fill_holes),
    "hard": Idea(targets=hard),
    "three seeds": Idea(targets=several_seeds),
    "cross half": Idea(targets=cross_fitted(0.5)),
    "cross": Idea(targets=cross_fitted(1.0)),
    "by slice": Idea(mask_loss=loss_by_slice),
    "by area": Idea(mask_loss=loss_by_area),
    "inpainted": Idea(synthetic=1500),
    "three students": Idea(students=3),
}


if __name__ == "__main__":
    main()
