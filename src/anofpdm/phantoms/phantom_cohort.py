"""Synthetic cohorts: brains with tumours or strokes, in the layouts of public data sets."""

import shutil
from dataclasses import dataclass
from functools import partial
from pathlib import Path

import numpy as np

from anofpdm.choices import PhantomKind, parse
from anofpdm.errors import CohortError
from anofpdm.phantoms.anatomy import PhantomGrid, fold, make_head
from anofpdm.phantoms.atlas import load_atlas
from anofpdm.phantoms.painted_lesions import displace, grow_stroke, grow_tumour, stroke_foci, tumour_foci
from anofpdm.phantoms.tissue_contrast import normal_overlays, render
from anofpdm.scans.nifti import write_nifti
from anofpdm.util.artifacts import decode, encode
from anofpdm.util.files import folder_lock, remove_temporary_files, translate_write_errors, write_atomically
from anofpdm.util.progress import Progress, silent
from anofpdm.util.workers import map_in_pool, worker_pool

TASK = "Generating phantoms"
MODALITIES = {PhantomKind.TUMOUR: ("flair", "t1", "t1ce", "t2"), PhantomKind.STROKE: ("t1",)}
GENERATOR = 1  # incremented whenever the same seed would give other bytes
HEALTHY_EVERY = 4  # one patient in four has no lesion
STROKE_ATROPHY = 0.45  # stroke patients are older and have wider sulci


@dataclass(frozen=True)
class Phantom:
    volumes: dict[str, np.ndarray]  # modality -> int16 [x, y, z], LPS for tumour, RAS for stroke
    mask: np.ndarray  # uint8 [x, y, z]
    affine: np.ndarray  # [4, 4]


@dataclass(frozen=True)
class PhantomConfig:
    """phantom.json of a cohort; together with a patient's number, it determines every byte of that patient."""

    kind: PhantomKind
    seed: int
    size: int = 128
    slices: int = 60
    generator: int = GENERATOR

    def __post_init__(self) -> None:
        if self.size < 16 or self.slices < 2:
            raise CohortError(f"phantom size {self.size}, {self.slices} slices: use at least size 16 and 2 slices")
        if self.seed < 0:
            raise CohortError(f"seed {self.seed}: use 0 or more")


def write_phantoms(
    out: Path,
    kind: PhantomKind | str,
    patients: int,
    seed: int,
    *,
    size: int = 128,
    slices: int = 60,
    workers: int = 1,
    on_progress: Progress = silent,
) -> None:
    """Write a cohort to `out`. Existing patients are kept, so that an interrupted run can be resumed."""
    config = PhantomConfig(parse(PhantomKind, kind), seed, size, slices)
    if patients < 1:
        raise CohortError(f"{patients} patients: use at least 1")
    with translate_write_errors(out):
        out.mkdir(parents=True, exist_ok=True)
    with folder_lock(out):
        remove_temporary_files(out)
        _check_record(out, config)
        missing = [number for number in range(patients) if not _is_complete(out, config, number)]
        write, done = partial(_write_patient, out, config), patients - len(missing)
        on_progress(TASK, done, patients)
        with worker_pool(min(workers, len(missing))) as pool:
            for count, _ in enumerate(map_in_pool(pool, write, missing, workers), start=done + 1):
                on_progress(TASK, count, patients)


def make_phantom(config: PhantomConfig, number: int) -> Phantom:
    """One patient; equal arguments give equal arrays."""
    tumour = config.kind is PhantomKind.TUMOUR
    rng = np.random.default_rng([config.seed, number, list(PhantomKind).index(config.kind)])
    grid, atlas = PhantomGrid(config.size, config.slices), load_atlas()
    head = make_head(rng, grid, atlas)
    healthy = (config.seed + number) % HEALTHY_EVERY == HEALTHY_EVERY - 1
    foci = [] if healthy else (tumour_foci if tumour else stroke_foci)(head, atlas)
    # A tumour displaces tissue; an old infarct shrinks.
    mni = displace(head, foci, rng.uniform(0.3, 0.6) if tumour else -rng.uniform(0.0, 0.25))
    tissues = fold(head, mni, atlas, atrophy=0.0 if tumour else STROKE_ATROPHY)
    overlays, labels = normal_overlays(head, tissues), np.zeros(head.mm.shape[1], np.uint8)
    if foci:
        lesion_overlays, labels = (grow_tumour if tumour else grow_stroke)(head, tissues, foci)
        overlays += lesion_overlays
    volumes, mask = render(head, tissues, overlays, MODALITIES[config.kind]), head.spread(labels)
    if not tumour:
        return Phantom(volumes, mask, grid.affine())
    flip = np.diag([-1.0, -1.0, 1.0, 1.0])  # the first two axes are reversed in BraTS
    flip[:2, 3] = config.size - 1
    flipped = {name: np.ascontiguousarray(volume[::-1, ::-1]) for name, volume in volumes.items()}
    return Phantom(flipped, np.ascontiguousarray(mask[::-1, ::-1]), grid.affine() @ flip)


def _check_record(out: Path, config: PhantomConfig) -> None:
    """Write the settings of this cohort, or check that the existing ones are equal."""
    path = out / "phantom.json"
    if not path.exists():
        write_atomically(path, encode(config))
        return
    try:
        existing = decode(PhantomConfig, path.read_bytes())
    except ValueError as problem:
        raise CohortError(f"{path}: damaged ({problem}); delete {out}, or choose another folder") from None
    for name, wanted in vars(config).items():
        if (value := getattr(existing, name)) != wanted:
            raise CohortError(
                f"{out}: contains other phantoms ({name} {value}, not {wanted}); choose another folder, or delete it"
            )


def _patient_files(out: Path, config: PhantomConfig, number: int) -> dict[str, Path]:
    """Of each scan and of the mask (`seg`), in a folder of their own."""
    if config.kind is PhantomKind.TUMOUR:
        name = f"PhantomTumour_{config.seed:04d}_{number:05d}"
        return {role: out / name / f"{name}_{role}.nii.gz" for role in (*MODALITIES[config.kind], "seg")}
    name = f"sub-phantom{config.seed:04d}s{number:05d}"
    start = f"Training/R001/{name}/ses-1/anat/{name}_ses-1_space-MNI152NLin2009aSym"
    return {"t1": out / f"{start}_T1w.nii.gz", "seg": out / f"{start}_label-L_desc-T1lesion_mask.nii.gz"}


def _is_complete(out: Path, config: PhantomConfig, number: int) -> bool:
    return all(path.is_file() for path in _patient_files(out, config, number).values())


def _write_patient(out: Path, config: PhantomConfig, number: int) -> None:
    """Replaces what an interrupted run left of the patient."""
    phantom, files = make_phantom(config, number), _patient_files(out, config, number)
    shutil.rmtree(files["seg"].parent, ignore_errors=True)
    files["seg"].parent.mkdir(parents=True)
    # The mask first: without one, a patient's slices count as unlabelled.
    for name, voxels in {"seg": phantom.mask, **phantom.volumes}.items():
        write_nifti(files[name], voxels, phantom.affine)
