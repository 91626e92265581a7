"""Synthetic cohorts, for people without data and for tests: brains with tumours or strokes, in the public layouts."""

import json
import shutil
from collections.abc import Callable, Iterator
from concurrent.futures import as_completed
from dataclasses import asdict, dataclass
from functools import partial
from pathlib import Path

import numpy as np

from anofpdm.cohorts.phantoms.anatomy import fold, make_head
from anofpdm.cohorts.phantoms.atlas import load_atlas
from anofpdm.cohorts.phantoms.contrast import harmless_overlays, render
from anofpdm.cohorts.phantoms.fields import PhantomGrid
from anofpdm.cohorts.phantoms.lesions import grow_tumour, no_lesion, push_away, scar, stroke_foci, tumour_foci
from anofpdm.errors import CohortError
from anofpdm.scans.nifti import write_nifti
from anofpdm.util.files import folder_lock, remove_temporary_files, write_atomically
from anofpdm.util.workers import worker_pool

KINDS = ("tumour", "stroke")
MODALITIES = {"tumour": ("flair", "t1", "t1ce", "t2"), "stroke": ("t1",)}
GENERATOR = 1  # raised whenever the same seed would give other bytes
HEALTHY_EVERY = 4  # one patient in four has no lesion
STROKE_ATROPHY = 0.45  # stroke comes with age, and age with wide sulci


@dataclass(frozen=True)
class Phantom:
    volumes: dict[str, np.ndarray]  # modality -> int16 [x, y, z], LPS for tumour, RAS for stroke
    mask: np.ndarray  # uint8 [x, y, z]
    affine: np.ndarray  # [4, 4]


@dataclass(frozen=True)
class Recipe:
    """What all patients of a cohort share; with a patient's number it decides every byte of that patient."""

    kind: str
    seed: int
    size: int
    slices: int

    def __post_init__(self) -> None:
        if self.kind not in KINDS:
            raise CohortError(f"unknown kind of phantom {self.kind!r}; choose one of: {', '.join(KINDS)}")
        if self.size < 16 or self.slices < 2:
            raise CohortError(f"a phantom needs size 16 and 2 slices at least, got {self.size} and {self.slices}")
        if self.seed < 0:
            raise CohortError(f"the seed must be 0 or more, got {self.seed}")


def make_phantom(kind: str, seed: int, number: int, *, size: int = 128, slices: int = 60) -> Phantom:
    """One patient, the same for the same arguments."""
    return _make(Recipe(kind, seed, size, slices), number)


def write_phantoms(
    out: Path,
    kind: str,
    patients: int,
    seed: int,
    *,
    size: int = 128,
    slices: int = 60,
    workers: int = 1,
    on_progress: Callable[[int, int], None] = lambda _done, _total: None,
) -> None:
    """A cohort under `out`. Patients already there are left as they are, so a broken run can be taken up again;
    `on_progress` hears how many patients are there, of how many."""
    recipe = Recipe(kind, seed, size, slices)
    if patients < 1:
        raise CohortError(f"a cohort needs at least 1 patient, got {patients}")
    if out.exists() and not out.is_dir():
        raise CohortError(f"{out} is a file; phantoms need a folder")
    out.mkdir(parents=True, exist_ok=True)
    with folder_lock(out):
        remove_temporary_files(out)
        _keep_record(out, recipe)
        missing = [number for number in range(patients) if not _is_whole(out, recipe, number)]
        already = patients - len(missing)
        on_progress(already, patients)
        for number, _ in enumerate(_run_all(partial(_write_patient, out, recipe), missing, workers), start=1):
            on_progress(already + number, patients)


def _make(recipe: Recipe, number: int) -> Phantom:
    tumour = recipe.kind == "tumour"
    rng = np.random.default_rng([recipe.seed, number, KINDS.index(recipe.kind)])
    grid, atlas = PhantomGrid(recipe.size, recipe.slices), load_atlas()
    head = make_head(rng, grid, atlas)
    healthy = (recipe.seed + number) % HEALTHY_EVERY == HEALTHY_EVERY - 1
    foci = [] if healthy else (tumour_foci if tumour else stroke_foci)(rng, head, atlas)
    # A tumour takes room; an old infarct shrinks.
    mni = push_away(head, foci, rng.uniform(0.3, 0.6) if tumour else -rng.uniform(0.0, 0.25))
    tissues = fold(rng, head, mni, atlas=atlas, atrophy=0.0 if tumour else STROKE_ATROPHY)
    overlays = harmless_overlays(rng, head, mni, tissues=tissues)
    lesion = (grow_tumour if tumour else scar)(rng, head, tissues, foci=foci) if foci else no_lesion(head)
    volumes = render(
        rng, head, mni, tissues=tissues, overlays=[*overlays, *lesion.overlays], modalities=MODALITIES[recipe.kind]
    )
    phantom = Phantom(volumes, head.spread(lesion.labels), grid.affine())
    return _turned_to_lps(phantom) if tumour else phantom


def _turned_to_lps(ras: Phantom) -> Phantom:
    """The same picture with its first two axes stored the other way round, as BraTS has them."""
    turn = np.diag([-1.0, -1.0, 1.0, 1.0])
    turn[:2, 3] = np.array(ras.mask.shape[:2]) - 1
    volumes = {name: np.ascontiguousarray(volume[::-1, ::-1]) for name, volume in ras.volumes.items()}
    return Phantom(volumes, np.ascontiguousarray(ras.mask[::-1, ::-1]), ras.affine @ turn)


def _keep_record(out: Path, recipe: Recipe) -> None:
    """Write down what this cohort is, or make sure that what is there is the same."""
    path = out / "phantom.json"
    wanted = {**asdict(recipe), "generator": GENERATOR}
    if not path.exists():
        write_atomically(path, (json.dumps(wanted, indent=2) + "\n").encode())
        return
    try:
        found = json.loads(path.read_text())
    except ValueError:
        raise CohortError(f"{path} is not readable as JSON; delete {out}, or write to another folder") from None
    if found != wanted:
        raise CohortError(
            f"{out} holds other phantoms: {path.name} says {found}, asked for {wanted}; "
            f"ask for the same, write to another folder, or delete {out} first"
        )


def _run_all(write_one: Callable[[int], None], numbers: list[int], workers: int) -> Iterator[None]:
    """Write every patient, yielding after each."""
    with worker_pool(min(workers, len(numbers))) as pool:
        if pool is None:
            yield from map(write_one, numbers)
            return
        for task in as_completed([pool.submit(write_one, number) for number in numbers]):
            yield task.result()


def _patient_folder(out: Path, recipe: Recipe, number: int) -> Path:
    if recipe.kind == "tumour":
        return out / f"PhantomTumour_{recipe.seed:04d}_{number:05d}"
    return out / "Training" / "R001" / f"sub-phantom{recipe.seed:04d}s{number:05d}"


def _file_names(folder: Path) -> dict[str, str]:
    """Path of each scan and of the mask (`seg`) inside a patient's folder."""
    if not folder.name.startswith("sub-"):
        return {name: f"{folder.name}_{name}.nii.gz" for name in (*MODALITIES["tumour"], "seg")}
    stem = f"ses-1/anat/{folder.name}_ses-1_space-MNI152NLin2009aSym"
    return {"t1": f"{stem}_T1w.nii.gz", "seg": f"{stem}_label-L_desc-T1lesion_mask.nii.gz"}


def _is_whole(out: Path, recipe: Recipe, number: int) -> bool:
    folder = _patient_folder(out, recipe, number)
    return all((folder / name).is_file() for name in _file_names(folder).values())


def _write_patient(out: Path, recipe: Recipe, number: int) -> None:
    """Written under a hidden name and renamed when complete: a killed run leaves nothing that looks whole."""
    folder = _patient_folder(out, recipe, number)
    part = folder.with_name(f".{folder.name}.part")
    phantom = _make(recipe, number)
    for stale in (part, folder):
        if stale.exists():
            shutil.rmtree(stale)
    for name, path in _file_names(folder).items():
        (part / path).parent.mkdir(parents=True, exist_ok=True)
        write_nifti(part / path, phantom.mask if name == "seg" else phantom.volumes[name], phantom.affine)
    part.rename(folder)
