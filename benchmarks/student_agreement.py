"""Students that are to draw the same masks of thin and of thick slices: what was tried. Validation split.

    python benchmarks/student_agreement.py MODEL COHORT [--ideas "default,two views"] [--seeds 0,1] [--keep FOLDER]

Agreement: DICE of the masks of a scan with those of the same scan with slices of 4 and 6 mm (means over its own
slices, restored as raw studies are), by scan and position of the thick slices; 1 where both are empty.
Ideas, joined by +: "shipped", the student in the folder of the model; "by slice", a loss by slice; "two views", each
slice is learnt thin and thick, with a loss on the difference; "merged", the targets are mean predictions of three
students (--keep: where these are stored).
"""

import argparse
import json
import time
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

import numpy as np
import torch
import torch.nn.functional as F
from scipy.special import expit
from student_changes import loss_by_slice
from student_ideas import Study, Targets
from student_study import Drawing, Outputs, Part, Recipe, draw, print_head, score
from torch import Tensor

from anofpdm.labels import HEALTHY
from anofpdm.scans.raw.thick import restoring_weights
from anofpdm.student import training as student_training
from anofpdm.student.batches import StudentBatch, training_batches
from anofpdm.student.edges import move_edges
from anofpdm.student.model import load_student, predict_slices
from anofpdm.student.network import Pixels, StudentConfig, StudentNet, neighbour_rows
from anofpdm.student.targets import PseudoLabels
from anofpdm.student.training import PASTE_SHARE, StudentTrainer, StudentTrainingConfig, label_loss

THICK_SHARE = 0.7  # as in the training of `stroke`
PAIRS = 24  # slices of a step, each seen thin and thick
THICK = ((4, 0.0), (4, 0.5), (6, 0.0), (6, 1 / 3), (6, 2 / 3))  # mm, and the position of the first in its thickness
COLUMNS = ("unhealthy", "mixed", "volume", "accuracy")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("model", type=Path)
    parser.add_argument("cohort", type=Path)
    parser.add_argument("--ideas", default="shipped,default,by slice,two views,merged,merged+two views,three students")
    parser.add_argument("--seeds", default="0")
    parser.add_argument("--steps", type=int, default=4000)
    parser.add_argument("--keep", type=Path)
    parser.add_argument("--out", type=Path)
    parser.add_argument("--device", default="cuda" if torch.cuda.is_available() else "cpu")
    args = parser.parse_args()
    study, found = Study.start(args), []
    thick = [f"{name}, thick" for name in COLUMNS]
    print_head(("idea, seed", *COLUMNS, *thick, "agreement: mean", "quarter of scans", "tenth", "worst", "s"))
    for name in args.ideas.split(","):
        for seed in map(int, args.seeds.split(",")):
            start = time.perf_counter()
            numbers = compare(study, students(study, name, seed, args.keep))
            print(f"| {name}, {seed} | {' | '.join(f'{value:.3f}' for value in numbers.values())} |", end=" ")
            print(f"{time.perf_counter() - start:.0f} |", flush=True)
            found.append({"idea": name, "seed": seed, **numbers})
            if args.out:
                args.out.write_text(json.dumps(found, indent=1))


# ---- training --------------------------------------------------------------------------------------------------------


def students(study: Study, name: str, seed: int, keep: Path | None) -> list[StudentNet]:
    """One, or several whose logits are averaged."""
    if name == "shipped":
        student = load_student(study.teacher.model.folder, None, study.teacher.model.device)
        assert student is not None
        return [student.network]
    ideas, recipe = name.split("+"), thick_recipe(study, seed)
    targets = move_edges(study.pseudo_labels(), study.train_part.pixels(study.scored))
    if name in ("default", "three students"):
        return [default_student(study, targets, one, keep) for one in ([seed] if name == "default" else range(3))]
    if "merged" in ideas:
        targets = merge(study, [default_student(study, targets, one, keep) for one in range(3)])
    if "two views" in ideas:
        return [train_views(study, recipe, targets)]
    loss = student_training.mask_loss
    try:
        setattr(student_training, "mask_loss", loss_by_slice if "by slice" in ideas else loss)  # noqa: B010
        return [study.train(recipe, targets)]
    finally:
        setattr(student_training, "mask_loss", loss)  # noqa: B010


def thick_recipe(study: Study, seed: int) -> Recipe:
    return Recipe(study.scored, StudentTrainingConfig(study.steps, seed=seed, thick_share=THICK_SHARE))


def default_student(study: Study, targets: Targets, seed: int, keep: Path | None) -> StudentNet:
    """Read from the folder if it is there."""
    path = None if keep is None else keep / f"default_{seed}.pt"
    if path is not None and path.is_file():
        network: StudentNet = torch.load(path, weights_only=False, map_location=study.teacher.model.device)
        return network
    network = study.train(thick_recipe(study, seed), targets)
    if path is not None:
        torch.save(network, path.with_suffix(".part"))
        path.with_suffix(".part").replace(path)
    return network


def merge(study: Study, networks: list[StudentNet]) -> Targets:
    part, device = study.train_part, study.teacher.model.device
    pixels = part.pixels(study.scored)
    mean = np.mean([expit(predict_slices(one, pixels, part.positions, device)[0]) for one in networks], axis=0)
    mean[part.labels == HEALTHY] = 0
    return np.round(255 * mean).astype(np.uint8)


def train_views(study: Study, recipe: Recipe, targets: Targets) -> StudentNet:
    part, device, training = study.train_part, study.teacher.model.device, replace(recipe.training, batch=PAIRS)
    size = int(part.cohort.slices.shape[-1])
    config = StudentConfig(recipe.modalities, size, recipe.neighbours_mm(part.positions))
    neighbours = neighbour_rows(part.positions, config.neighbours_mm)
    data = PseudoLabels(part.pixels(recipe.modalities), targets, neighbours, part.labels)
    torch.manual_seed(training.seed)
    trainer = TwoViews(StudentNet(config), training, device)
    for step, batch in enumerate(both_views(data, training, device)):
        trainer.set_learning_rate(step, step / study.steps)
        trainer.update(batch)
        if step + 1 == study.steps:
            break
    return trainer.averaged_network()


def both_views(data: PseudoLabels, training: StudentTrainingConfig, device: torch.device) -> Iterator[StudentBatch]:
    """The same slices, augmented alike, thin and then thick."""
    drawn = (training_batches(data, training.batch, training.seed, device, PASTE_SHARE, (), one) for one in (0.0, 1.0))
    for thin, thick in zip(*drawn, strict=True):
        yield StudentBatch(*(torch.cat(parts) for parts in zip(thin, thick, strict=True)))


class TwoViews(StudentTrainer):
    def _optimise(self, *tensors: Tensor) -> Tensor:
        views = zip(*(tensor.chunk(2) for tensor in tensors), strict=True)
        augmented = [StudentBatch(*view).augment() for view in views]
        x, mask, labels = (torch.cat(parts) for parts in zip(*augmented, strict=True))
        with torch.autocast(x.device.type, torch.bfloat16, enabled=x.is_cuda, cache_enabled=False):
            pixel_logits, slice_logits = (logits.float() for logits in self.network(x))
        loss = student_training.mask_loss(pixel_logits, mask) + difference(pixel_logits, slice_logits)
        loss = loss + self.training.label_share * label_loss(slice_logits, labels)
        self.optimiser.zero_grad()
        loss.backward()
        self.optimiser.step()
        return loss.detach()


def difference(pixel_logits: Tensor, slice_logits: Tensor) -> Tensor:
    """Between the first half of a batch and the second: one minus the DICE of probabilities, and that of the labels."""
    thin, thick = pixel_logits.sigmoid().chunk(2)
    agreement = 2 * (thin * thick).sum() / (thin.square() + thick.square()).sum().clamp(min=1)
    thin_label, thick_label = slice_logits.chunk(2)
    return 1 - agreement + 0.2 * F.smooth_l1_loss(thin_label, thick_label)


# ---- scores ----------------------------------------------------------------------------------------------------------


def compare(study: Study, networks: list[StudentNet]) -> dict[str, float]:
    val, device = study.val, study.teacher.model.device
    calibration = Outputs.of(networks[0], val, val, device).calibration
    slices = val.pixels(study.scored)(np.arange(len(val.rows))).astype(np.float32)

    def masks(pixels: Pixels) -> tuple[np.ndarray, dict[str, float]]:
        logits = [predict_slices(network, pixels, val.positions, device) for network in networks]
        of_pixels, of_slices = (np.mean(part, axis=0) for part in zip(*logits, strict=True))
        drawn = draw(Outputs(of_pixels, of_slices, calibration), val.positions, Drawing())
        return drawn.masks, score(drawn, study.truth, val.patients)

    thin, numbers = masks(slices.__getitem__)
    found = [masks(thicken(slices, val, *one).__getitem__) for one in THICK]
    agreement = np.array([[overlap(thin[rows], one[rows]) for rows in scans(val)] for one, _ in found])
    return {
        **{name: numbers[name] for name in COLUMNS},
        **{f"{name}, thick": float(np.mean([one[name] for _, one in found])) for name in COLUMNS},
        "mean": float(agreement.mean()),
        "quarter": float(np.quantile(agreement, 0.25)),
        "tenth": float(np.quantile(agreement, 0.1)),
        "worst": float(agreement.min()),
    }


def scans(part: Part) -> list[np.ndarray]:
    """The rows of each scan, from the lowest to the highest."""
    heights, names = part.positions.heights_mm, part.positions.scans
    rows = [np.flatnonzero(names == name) for name in np.unique(names)]
    return [one[np.argsort(heights[one])] for one in rows]


def overlap(one: np.ndarray, other: np.ndarray) -> float:
    both = int(one.sum() + other.sum())
    return 2 * int((one & other).sum()) / both if both else 1.0


def thicken(slices: np.ndarray, part: Part, mm: float, position: float) -> np.ndarray:
    """[n, C, H, W]: means over thick slices, restored to the distance of the slices; background stays as it is."""
    result = slices.copy()
    for rows in scans(part):
        parts = max(2, round(mm / float(np.median(np.diff(part.positions.heights_mm[rows])))))
        below = round(position * parts)
        above = -(len(rows) + below) % parts
        padded = np.concatenate([slices[rows[:1]].repeat(below, 0), slices[rows], slices[rows[-1:]].repeat(above, 0)])
        thick = padded.reshape(-1, parts, *padded.shape[1:]).mean(axis=1)
        thin = np.tensordot(restoring_weights(len(thick), parts).astype(np.float32), thick, 1)
        result[rows] = thin[below : below + len(rows)].clip(-1, 1)
    return np.where(slices <= -0.99, slices, result)


if __name__ == "__main__":
    main()
