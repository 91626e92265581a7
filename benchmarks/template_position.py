"""Where the scans of a cohort lie in template space: programs normalise scans to the same template differently.

    python benchmarks/template_position.py FILES --split split.csv [--index index.csv] [--record MODEL]

FILES: scans in the layout of ATLAS. Prints what a model records of them: the mean affine from the template to training
scans (as many as `anofpdm prepare` measures) and the middle of their slices; and how far validation scans lie from
where registration to the template puts them, without the affine and with it. --index: the table of the pack
`arc_t1_128`, whose files have lost their position. --record: writes both into a model, whose weights stay the same.
"""

import argparse
import csv
import json
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
from raw_disturbed import read_heads
from safetensors import safe_open

from anofpdm.cohorts.plan import plan_cohort
from anofpdm.cohorts.raw_scans import RawOptions
from anofpdm.cohorts.subjects import Subject
from anofpdm.network.checkpoint import WEIGHTS, save_model
from anofpdm.options import Layout, Split, Template
from anofpdm.scans.grid import Grid
from anofpdm.scans.raw.geometry import apply
from anofpdm.scans.raw.register import Head
from anofpdm.scans.raw.template import find_affine, load_template
from anofpdm.util.files import write_atomically

# First pixel of slice 0 of the pack, whose slices show 192 mm around the centre of volumes of 157 x 189 x 156 mm. Found
# by comparing them with volumes of `arc_raw`: correlation 0.9995, half a pixel away 0.997.
FIRST_PIXEL_MM = np.array([94.75, 76.75, -70.0])


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("files", type=Path)
    parser.add_argument("--split", type=Path, required=True)
    parser.add_argument("--index", type=Path, help="Table of the pack with the columns patient and z.")
    parser.add_argument("--record", type=Path, help="Folder of a model.")
    args = parser.parse_args()
    heights = lowest_slices(args.index) if args.index else {}
    plan = plan_cohort(Layout.ATLAS2, args.files, split=args.split)
    plan = replace(plan, raw=RawOptions(template=Template.MNI152))
    chosen = [one for one in plan.subjects if one.name in plan.measured]
    found = [measure(one, heights) for one in chosen]
    mean = np.mean([matrix for matrix, _ in found], axis=0).round(6)
    middle = np.median([apply(head.grid.affine, (np.array(head.grid.shape) - 1) / 2) for _, head in found], axis=0)
    position = {"template_affine": mean[:3].ravel().tolist(), "centre_mm": middle[:2].round(3).tolist()}
    print(f"{len(chosen)} training scans: {json.dumps(position)}")
    held_out = [one for one in plan.subjects if plan.split[one.patient] == Split.VAL]
    gaps = np.array([distances(*measure(one, heights), mean) for one in held_out])
    for name, values in zip(("template", "template with the mean affine"), gaps.T, strict=True):
        print(
            f"{len(gaps)} validation scans, distance to the {name}: {values.mean():.2f} mm, at most {values.max():.2f}"
        )
    if args.record:
        record(args.record, position)


def lowest_slices(index: Path) -> dict[str, int]:
    with index.open(newline="") as file:
        rows = [(row["patient"], int(row["z"])) for row in csv.DictReader(file)]
    return {patient: min(z for other, z in rows if other == patient) for patient in {name for name, _ in rows}}


def measure(subject: Subject, lowest: dict[str, int]) -> tuple[np.ndarray, Head]:
    """The affine from the template to a scan, and the scan."""
    (head,) = read_heads({name: Path(path) for name, path in subject.images.items()}).values()
    if lowest:
        affine = head.grid.affine.copy()
        affine[:3, 3] = FIRST_PIXEL_MM + np.array([0, 0, lowest[subject.patient.removeprefix("sub-")]])
        head = replace(head, grid=Grid.from_affine(head.grid.shape, affine))
    return find_affine(load_template(), head)[0], head


def distances(found: np.ndarray, head: Head, mean: np.ndarray) -> tuple[float, float]:
    """Mean over the brain, in millimetres: of registration to the template, and to where training scans lie."""
    points = apply(head.grid.affine, np.argwhere(head.brain)[::20])
    in_template = apply(np.linalg.inv(found), points)
    without, with_mean = (in_template - points, apply(mean, in_template) - points)
    return float(np.linalg.norm(without, axis=1).mean()), float(np.linalg.norm(with_mean, axis=1).mean())


# ---- models ----------------------------------------------------------------------------------------------------------


def record(model: Path, position: dict[str, list[float]]) -> None:
    """In the diffusion model and its student, whose hashes change with their configuration."""

    def changed(config: dict[str, Any]) -> dict[str, Any]:
        return config | {"expects": (config.get("expects") or {}) | position}

    digest = rewrite(model, changed)
    calibration = json.loads((model / "calibration.json").read_text()) | {"checkpoint_sha256": digest}
    write_atomically(model / "calibration.json", json.dumps(calibration, indent=2).encode())
    rewrite(model / "student", lambda config: changed(config) | {"teacher_sha256": digest})
    print(f"{model}: recorded; the diffusion model's hash is {digest}")


def rewrite(folder: Path, change: Callable[[dict[str, Any]], dict[str, Any]]) -> str:
    """The same tensors with another configuration."""
    with safe_open(folder / WEIGHTS, framework="pt") as file:
        tensors = {name: file.get_tensor(name) for name in file.keys()}  # noqa: SIM118
        config = json.loads(file.metadata()["anofpdm"])
    return save_model(folder, tensors, change(config))


if __name__ == "__main__":
    main()
