"""Students of which a scan may lack modalities: what T1 and T1ce gain or cost. Validation split.

    python benchmarks/student_modalities.py MODEL COHORT [--variants "optional,late 0.6"] [--seeds 0,1]

Variants: "plain", a student of the other modalities (FLAIR and T2); "optional", of which a scan may lack all but the
first; "further", T1 and T1ce besides, each optional; "together", both missing in half of the slices; "late", missing
in all slices until that part of training is over, with input weights that start at zero.
"""

import argparse
import json
import time
from dataclasses import dataclass
from pathlib import Path
from unittest.mock import patch

import torch
from student_ideas import Study
from student_study import SCORES, Drawing, Outputs, draw, print_head, print_row, score

from anofpdm.student import batches as student_batches
from anofpdm.student import training as student_training
from anofpdm.student.edges import move_edges
from anofpdm.student.model import predict_slices
from anofpdm.student.network import StudentConfig, StudentNet, cohort_pixels, default_neighbours_mm, neighbour_rows
from anofpdm.student.targets import PseudoLabels
from anofpdm.student.training import StudentTrainingConfig
from anofpdm.util.sets import subsets


@dataclass(frozen=True)
class Variant:
    all_modalities: bool = True  # or without the further ones
    needed: int = 1  # number of modalities that no scan lacks; each other is missing in a quarter of the slices
    together: float = 0.5  # share of the slices in which all further modalities are missing besides
    late: float = 0.0  # part of training without any further modality


VARIANTS = {
    "plain": Variant(all_modalities=False, needed=9),
    "optional": Variant(all_modalities=False),
    "further": Variant(together=0.0),
    "together": Variant(),
    "late 0.3": Variant(late=0.3),
    "late 0.6": Variant(late=0.6),
}


@dataclass(frozen=True)
class Modalities:
    """In the order of the student's channels: those on which the pseudo-labels are based first."""

    names: tuple[str, ...]
    optional: tuple[str, ...]
    further: tuple[str, ...]

    @classmethod
    def of(cls, variant: Variant, study: Study, further: tuple[str, ...]) -> "Modalities":
        base = tuple(name for name in study.teacher.model.modalities if name not in further)
        names = (*base, *further) if variant.all_modalities else base
        return cls(names, names[variant.needed :], names[len(base) :])


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("model", type=Path)
    parser.add_argument("cohort", type=Path)
    parser.add_argument("--further", default="t1,t1ce", help="Modalities on which pseudo-labels are not based.")
    parser.add_argument("--variants", default=",".join(VARIANTS))
    parser.add_argument("--seeds", default="0")
    parser.add_argument("--steps", type=int, default=3000)
    parser.add_argument("--out", type=Path)
    parser.add_argument("--device", default="cuda" if torch.cuda.is_available() else "cpu")
    args = parser.parse_args()
    study, found, further = Study.start(args), [], tuple(args.further.split(","))
    print_head(("variant, seed, modalities of the scan", *SCORES, "s"))
    for name in args.variants.split(","):
        for seed in map(int, args.seeds.split(",")):
            start = time.perf_counter()
            network = train(VARIANTS[name], Modalities.of(VARIANTS[name], study, further), study, seed)
            for given, numbers in score_each(network, study).items():
                numbers["s"] = time.perf_counter() - start
                print_row(f"{name}, {seed}, {given}", numbers, (*SCORES, "s"))
                found.append({"variant": name, "seed": seed, "given": given, **numbers})
                if args.out:
                    args.out.write_text(json.dumps(found, indent=1))


def train(variant: Variant, modalities: Modalities, study: Study, seed: int) -> StudentNet:
    part, device = study.train_part, study.teacher.model.device
    size, neighbours_mm = int(part.cohort.slices.shape[-1]), default_neighbours_mm(part.positions)
    config = StudentConfig(modalities.names, size, neighbours_mm, optional=modalities.optional)
    targets = move_edges(study.pseudo_labels(), part.pixels(study.scored))
    neighbours = neighbour_rows(part.positions, neighbours_mm)
    data = PseudoLabels(part.pixels(modalities.names), targets, neighbours, part.labels)
    training = StudentTrainingConfig(study.steps, seed=seed)
    with (
        patch.object(student_batches, "FURTHER_MISSING_SHARE", variant.together),
        patch.object(student_training, "FURTHER_FROM", variant.late),
    ):
        return student_training.train_student(config, data, training, device, further=modalities.further)


def score_each(network: StudentNet, study: Study) -> dict[str, dict[str, float]]:
    """By the optional modalities that scans lack. The detector is that of scans that have all."""
    val, config, device = study.val, network.config, study.teacher.model.device
    calibration = Outputs.of(network, val, val, device).calibration
    found = {}
    for without in subsets(config.optional):
        pixels = cohort_pixels(val.cohort, val.rows, config.modalities, without)
        outputs = Outputs(*predict_slices(network, pixels, val.positions, device), calibration)
        given = "+".join(name for name in config.modalities if name not in without)
        found[given] = score(draw(outputs, val.positions, Drawing()), study.truth, val.patients)
    return found


if __name__ == "__main__":
    main()
