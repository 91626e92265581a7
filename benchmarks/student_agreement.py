"""Students that are to draw the same masks of thin and of thick slices: what was tried. Validation split.

    python benchmarks/student_agreement.py MODEL COHORT [--ideas "thick,merged"] [--seeds 0,1] [--keep FOLDER]

Agreement: DICE of the masks of a scan with those of the same scan with slices of 4 and 6 mm (means over its own
slices, restored as raw studies are), by scan and position of the thick slices; 1 where both are empty. "Moved": the
thick slices are also turned, scaled and shifted a little, as registration to a template does, and the predictions back.
Students are trained with thick slices (anofpdm distill --thick-slices). Ideas, joined by +: "shipped", the student in
the folder of the model; "thin", without thick slices; "weight 3", of the loss on the difference between thin and thick
slices; "merged", as with --students 3; "three students", their mean logits (--keep: where the three are stored).
"""

import argparse
import json
import math
import time
from pathlib import Path
from unittest.mock import patch

import numpy as np
import torch
import torch.nn.functional as F
from student_ideas import Study, Targets, with_seed
from student_study import Drawing, Outputs, Part, Recipe, draw, print_head, score

from anofpdm.scans.raw.thick import restoring_weights
from anofpdm.student import training as student_training
from anofpdm.student.distill import mean_prediction
from anofpdm.student.edges import move_edges
from anofpdm.student.model import load_student, predict_slices
from anofpdm.student.network import MISSING, Pixels, StudentConfig, StudentNet
from anofpdm.student.targets import PseudoLabels
from anofpdm.student.training import StudentTrainingConfig, view_loss

THICK = ((4, 0.0), (4, 0.5), (6, 0.0), (6, 1 / 3), (6, 2 / 3))  # mm, and the position of the first in its thickness
MOVES = (  # of each: degrees, magnification, and pixels to the right and down
    (1.0, 1.015, 0.7, -0.4),
    (-1.5, 0.985, -0.5, 0.8),
    (1.5, 0.98, 0.6, 0.6),
    (-1.0, 1.02, -0.8, 0.3),
    (0.5, 0.985, 0.4, -0.9),
)
NO_LESION = -20.0  # logit of what moves into a slice
COLUMNS = ("unhealthy", "mixed", "volume", "accuracy")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("model", type=Path)
    parser.add_argument("cohort", type=Path)
    parser.add_argument(
        "--ideas", default="shipped,thin,thick,weight 3,merged,merged+weight 3,merged+thin,three students"
    )
    parser.add_argument("--seeds", default="0")
    parser.add_argument("--steps", type=int, default=4000)
    parser.add_argument("--keep", type=Path)
    parser.add_argument("--out", type=Path)
    parser.add_argument("--device", default="cuda" if torch.cuda.is_available() else "cpu")
    args = parser.parse_args()
    study, found = Study.start(args), []
    thick = [f"{name}, thick" for name in COLUMNS]
    agree = [f"{kind}: {name}" for kind in ("agreement", "moved") for name in ("mean", "quarter", "tenth", "worst")]
    print_head(("idea, seed", *COLUMNS, *thick, *agree, "s"))
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
    model, part = study.teacher.model, study.train_part
    if name == "shipped":
        student = load_student(model.folder, None, model.device)
        assert student is not None
        return [student.network]
    ideas = name.split("+")
    recipe = Recipe(study.scored, StudentTrainingConfig(study.steps, seed=seed, thick_slices="thin" not in ideas))
    targets = move_edges(study.pseudo_labels(), part.pixels(study.scored))
    if "merged" in ideas or "three students" in ideas:
        others = [first_student(study, recipe, targets, one, keep) for one in range(seed + 1, seed + 4)]
        if "three students" in ideas:
            return others
        data = PseudoLabels(part.pixels(study.scored), targets, np.empty((0, 3), int), part.labels)
        targets = mean_prediction(others, data, part.positions, model.device)
    weight = next((float(word.split()[1]) for word in ideas if word.startswith("weight ")), 1.0)
    with patch.object(student_training, "view_loss", lambda *logits: weight * view_loss(*logits)):
        return [study.train(recipe, targets)]


def first_student(study: Study, recipe: Recipe, targets: Targets, seed: int, keep: Path | None) -> StudentNet:
    """Read from the folder if it is there."""
    kind, device = "thick" if recipe.training.thick_slices else "thin", study.teacher.model.device
    path = None if keep is None else keep / f"{kind}_{seed}.pt"
    if path is not None and path.is_file():
        size, positions = int(study.train_part.cohort.slices.shape[-1]), study.train_part.positions
        network = StudentNet(StudentConfig(recipe.modalities, size, recipe.neighbours_mm(positions), recipe.width))
        network.load_state_dict(torch.load(path, weights_only=True, map_location="cpu"))
        return network.to(device).eval()
    network = study.train(with_seed(recipe, seed), targets)
    if path is not None:
        torch.save(network.state_dict(), path.with_suffix(".part"))
        path.with_suffix(".part").replace(path)
    return network


# ---- scores ----------------------------------------------------------------------------------------------------------


def compare(study: Study, networks: list[StudentNet]) -> dict[str, float]:
    val, device = study.val, study.teacher.model.device
    calibration = Outputs.of(networks[0], val, val, device).calibration
    slices = val.pixels(study.scored)(np.arange(len(val.rows))).astype(np.float32)

    def masks(pixels: Pixels, back: np.ndarray | None = None) -> tuple[np.ndarray, dict[str, float]]:
        logits = [predict_slices(network, pixels, val.positions, device) for network in networks]
        of_pixels, of_slices = (np.mean(part, axis=0) for part in zip(*logits, strict=True))
        if back is not None:
            of_pixels = resample(of_pixels[:, None], back, NO_LESION)[:, 0]
        drawn = draw(Outputs(of_pixels, of_slices, calibration), val.positions, Drawing())
        return drawn.masks, score(drawn, study.truth, val.patients)

    thin, numbers = masks(slices.__getitem__)
    thick = [thicken(slices, val, *one) for one in THICK]
    found = [masks(one.__getitem__) for one in thick]
    matrices = [move_matrix(move, slices.shape[-1]) for move in MOVES]
    versions = [resample(one, matrix, MISSING) for one, matrix in zip(thick, matrices, strict=True)]
    moved = [masks(one.__getitem__, np.linalg.inv(matrix)) for one, matrix in zip(versions, matrices, strict=True)]
    return {
        **{name: numbers[name] for name in COLUMNS},
        **{f"{name}, thick": float(np.mean([one[name] for _, one in found])) for name in COLUMNS},
        **agreement(thin, [one for one, _ in found], val),
        **{f"moved: {name}": value for name, value in agreement(thin, [one for one, _ in moved], val).items()},
    }


def agreement(thin: np.ndarray, others: list[np.ndarray], part: Part) -> dict[str, float]:
    by_scan = np.array([[overlap(thin[rows], one[rows]) for rows in scans(part)] for one in others])
    return {
        "mean": float(by_scan.mean()),
        "quarter": float(np.quantile(by_scan, 0.25)),
        "tenth": float(np.quantile(by_scan, 0.1)),
        "worst": float(by_scan.min()),
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


def move_matrix(move: tuple[float, float, float, float], size: int) -> np.ndarray:
    """[3, 3], in units of half the side of a slice: positions in the moved slice to positions in the slice."""
    degrees, magnification, right, down = move
    cosine, sine = (function(math.radians(degrees)) / magnification for function in (math.cos, math.sin))
    return np.array([[cosine, -sine, -2 * right / size], [sine, cosine, -2 * down / size], [0.0, 0.0, 1.0]])


def resample(images: np.ndarray, matrix: np.ndarray, outside: float) -> np.ndarray:
    """[n, C, H, W] float32: linear interpolation at the positions that the matrix maps pixels to."""
    rows = torch.tensor(matrix[None, :2], dtype=torch.float32).expand(len(images), -1, -1)
    grid = F.affine_grid(rows, list(images.shape), align_corners=False)
    return (F.grid_sample(torch.from_numpy(images) - outside, grid, align_corners=False) + outside).numpy()


if __name__ == "__main__":
    main()
